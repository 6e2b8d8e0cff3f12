package streamkeeper.storage;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, without a process for each file.
 *
 * <p>Without Hadoop's native library, which PySpark does not have, Hadoop runs {@code chmod} for each new file and folder,
 * and {@code readlink} four times for each rename: some thirty processes for a commit of a table with its checksum.
 *
 * <p>Files are read whose name has a colon, which Hadoop's own lists and then cannot open.
 */
public final class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
  }

  /** The same as Hadoop's, which takes what stands before a colon in a file's name for a scheme. */
  @Override
  public Path getChecksumFile(Path file) {
    return new Path(file.getParent(), new Path(null, null, "." + file.getName() + ".crc"));
  }

  private static final class Raw extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      java.nio.file.Path file = pathToFile(path).toPath();
      PosixFileAttributeView view = Files.getFileAttributeView(file, PosixFileAttributeView.class);
      if (view == null || permission.getStickyBit()) {
        super.setPermission(path, permission);
        return;
      }
      String text =
          permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL + permission.getOtherAction().SYMBOL;
      view.setPermissions(PosixFilePermissions.fromString(text));
    }

    @Override
    public FileStatus getFileLinkStatus(Path path) throws IOException {
      boolean link = Files.isSymbolicLink(pathToFile(path).toPath());
      return link ? super.getFileLinkStatus(path) : getFileStatus(path);
    }
  }

  /** The same for {@code FileContext}, by which Spark and Delta rename. */
  public static final class InContext extends ChecksumFs {
    public InContext(URI uri, Configuration conf) throws IOException, URISyntaxException {
      super(new RawInContext(uri, conf));
    }
  }

  private static final class RawInContext extends DelegateToFileSystem {
    RawInContext(URI uri, Configuration conf) throws IOException, URISyntaxException {
      super(uri, new Raw(), conf, "file", false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1;
    }

    @Override
    public boolean isValidName(String name) {
      return true;
    }
  }
}
