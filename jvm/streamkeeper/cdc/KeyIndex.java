package streamkeeper.cdc;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.column.ColumnReader;
import org.apache.parquet.column.impl.ColumnReadStoreImpl;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.example.DummyRecordConverter;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.io.api.GroupConverter;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.commands.DeletionVectorData;
import org.apache.spark.sql.delta.commands.DeletionVectorResult;
import org.apache.spark.sql.delta.commands.DeletionVectorWriter;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArrayFormat;
import org.apache.spark.sql.delta.deletionvectors.StoredBitmap;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore$;
import org.apache.spark.sql.delta.util.DeltaFileOperations;
import org.apache.spark.sql.delta.util.Utils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Where each key of a table has its row, for a key of one column of whole numbers: with it a batch marks the rows of its
 * keys without reading the table.
 *
 * <p>It is compared with the files that a batch's own transaction sees, and with their deletion vectors, before each use.
 * What it does not know of them, whoever wrote it, it reads. So neither a batch that fails nor another writer leaves
 * anything wrong behind. It has the place of each row that is left in the files it knows; places of rows that are gone
 * may stay, and do not count.
 */
public final class KeyIndex {
  private static final Logger LOG = LoggerFactory.getLogger(KeyIndex.class);
  private static final Map<String, KeyIndex> OF_TABLES = new HashMap<>();

  /** Part of the heap that the places of all tables may take. */
  private static final int OF_HEAP = 8;

  /** Rows that batches must have read without the index for one row that it reads, which takes longer. */
  private static final int WORTH = 2;

  /** New keys for which there is room: as many as the table has and some, up to a million, or a quarter of these. */
  private static final int FEW = 1_000;

  private static final int MUCH = 1_000_000;

  /** Rows have numbers of 32 bits, and each file takes one more. */
  private static final long MOST_ROWS = 2_000_000_000;

  private final Map<String, KnownFile> files = new HashMap<>();

  /** The same, by the numbers of their first rows. */
  private KnownFile[] inOrder = {};

  private int[] firstRows = {};
  private long nextRow;
  private Places places;
  private long spared;
  private boolean useless;

  private KeyIndex() {}

  /** Returns the index that this process keeps of the table at a path. */
  public static synchronized KeyIndex of(String table) {
    return OF_TABLES.computeIfAbsent(table, path -> new KeyIndex());
  }

  /**
   * Marks all rows of some keys by new deletion vectors.
   *
   * @param all the files that the transaction sees.
   * @param spared how many rows a batch reads that does without.
   * @param column the key's name in the files.
   * @param keys one column of 64 bits.
   * @return null if the batch must do without: what the index has to read first would cost more than it has spared, or
   *     it cannot know this table, because that has too many rows, or several of one key.
   */
  public synchronized DeletionVectors mark(
      SparkSession session,
      OptimisticTransaction transaction,
      Seq<AddFile> all,
      long spared,
      String column,
      Dataset<Row> keys) {
    if (useless) {
      return null;
    }
    this.spared += spared;
    Map<String, AddFile> listed = new HashMap<>();
    CollectionConverters.asJava(all).forEach(file -> listed.put(file.path(), file));
    Stored stored = new Stored(transaction, column);
    return refreshed(listed, stored) ? written(session, transaction, listed, stored, found(keys)) : null;
  }

  /** Reads what is new in a table's files; returns whether that was worth it, and possible. */
  private boolean refreshed(Map<String, AddFile> listed, Stored stored) {
    if (listed.values().stream().anyMatch(file -> file.numPhysicalRecords().isEmpty())) {
      return false;
    }
    spared = Math.min(spared, WORTH * rows(listed.values()));
    files.keySet().retainAll(listed.keySet());
    try {
      return learned(listed, stored);
    } catch (Places.Full full) {
      forget(); // to begin anew, with more room, once that is worth it
      return false;
    } catch (Exception | OutOfMemoryError error) {
      useless = !(error instanceof IOException || error instanceof UncheckedIOException);
      String then = useless ? "from now on" : "until their places were read anew";
      LOG.warn("Rows of {} are looked up in its files {}.", stored.table, then, error);
      spared = 0;
      forget();
      return false;
    }
  }

  /** Reads the files that are not known; returns whether that was worth it, and possible. */
  private boolean learned(Map<String, AddFile> listed, Stored stored) {
    List<KnownFile> others =
        files.values().parallelStream().filter(file -> !file.follows(listed.get(file.name), stored)).toList();
    others.forEach(file -> files.remove(file.name));
    List<AddFile> unknown = new ArrayList<>(listed.values());
    unknown.removeIf(file -> files.containsKey(file.path()));
    if (places == null || nextRow + rows(unknown) > MOST_ROWS) {
      forget();
      unknown = new ArrayList<>(listed.values());
    }
    long reads = rows(unknown);
    if (spared < WORTH * reads || (places == null && !begun(keys(unknown), reads))) {
      return false;
    }
    spared -= WORTH * reads;
    List<KnownFile> fresh = new ArrayList<>();
    for (AddFile file : unknown) {
      fresh.add(new KnownFile(file, (int) nextRow));
      nextRow += physicalRows(file) + 1; // so that no two begin with the same, not even empty ones
    }
    fresh.parallelStream().forEach(file -> file.gone = stored.vector(listed.get(file.name)));
    inOrder = Stream.concat(files.values().stream(), fresh.stream())
        .sorted(Comparator.comparingInt(file -> file.firstRow))
        .toArray(KnownFile[]::new);
    firstRows = Arrays.stream(inOrder).mapToInt(file -> file.firstRow).toArray();
    fresh.parallelStream().forEach(file -> put(file, stored.keys(file)));
    fresh.forEach(file -> files.put(file.name, file)); // known only if all were read
    if (!fresh.isEmpty() && fresh.size() == files.size()) {
      LOG.info("The places of {} keys of {} take {} MB.", keys(unknown), stored.table, bytes() >> 20);
    }
    return true;
  }

  /** Makes room for the places of some keys, and of new ones; returns false if there is none. */
  private boolean begun(long keys, long rows) {
    synchronized (KeyIndex.class) {
      long others = OF_TABLES.values().stream().mapToLong(KeyIndex::bytes).sum();
      long wanted = keys + Math.max(keys / 4, Math.min(keys + FEW, MUCH));
      long most = Math.min(wanted, Places.keysIn(Runtime.getRuntime().maxMemory() / OF_HEAP - others));
      if (most < keys || rows > MOST_ROWS) {
        return false;
      }
      places = new Places((int) most);
      return true;
    }
  }

  private long bytes() {
    Places held = places;
    return held == null ? 0 : held.bytes();
  }

  private void put(KnownFile file, long[] keys) {
    synchronized (places) { // the caller of mark() has the lock of the index, and other threads read files for it
      for (int number = 0; number < keys.length; number++) {
        int row = file.firstRow + number;
        if (file.has(row) && fileOf(places.put(keys[number], row)) != null) {
          throw new IllegalStateException("The table has several rows of the key " + keys[number] + ".");
        }
      }
    }
  }

  /** Returns the file that has a row still; null if none has. */
  private KnownFile fileOf(int row) {
    int at = Arrays.binarySearch(firstRows, row);
    int number = at >= 0 ? at : -at - 2;
    return row >= 0 && number >= 0 && inOrder[number].has(row) ? inOrder[number] : null;
  }

  /** Returns the rows of keys, by file, as they are numbered there. */
  private Map<String, RoaringBitmapArray> found(Dataset<Row> keys) {
    Map<String, RoaringBitmapArray> found = new HashMap<>();
    for (InternalRow key : keys.queryExecution().executedPlan().executeCollect()) {
      int row = places.get(key.getLong(0));
      KnownFile file = fileOf(row);
      if (file != null) {
        found.computeIfAbsent(file.name, name -> new RoaringBitmapArray()).add(row - file.firstRow);
      }
    }
    return found;
  }

  private DeletionVectors written(
      SparkSession session,
      OptimisticTransaction transaction,
      Map<String, AddFile> listed,
      Stored stored,
      Map<String, RoaringBitmapArray> found) {
    List<DeletionVectorData> wanted = new ArrayList<>();
    found.forEach(
        (name, gone) -> {
          gone.or(files.get(name).gone);
          gone.runOptimize();
          byte[] data = gone.serializeAsByteArray(RoaringBitmapArrayFormat.Portable());
          wanted.add(new DeletionVectorData(name, Option.empty(), data, gone.cardinality()));
        });
    Iterator<DeletionVectorResult> results =
        DeletionVectorWriter.createMapperToStoreDeletionVectors(
                session, stored.conf, stored.table, Utils.getRandomPrefixLength(transaction.metadata()))
            .apply(CollectionConverters.asScala(wanted.iterator()));
    DeletionVectors made = new DeletionVectors();
    while (results.hasNext()) {
      DeletionVectorResult result = results.next();
      KnownFile file = files.get(result.filePath());
      file.gone = found.get(file.name);
      file.vector = result.deletionVector().uniqueId();
      made.add(listed.get(file.name), result.deletionVector());
    }
    return made;
  }

  private void forget() {
    files.clear();
    inOrder = new KnownFile[0];
    places = null;
    nextRow = 0;
  }

  private static long physicalRows(AddFile file) {
    return (Long) file.numPhysicalRecords().get();
  }

  private static long rows(Collection<AddFile> files) {
    return files.stream().mapToLong(KeyIndex::physicalRows).sum();
  }

  private static long keys(List<AddFile> files) {
    return files.stream().mapToLong(file -> physicalRows(file) - file.numDeletedRecords()).sum();
  }

  /** The files of a table, as a transaction reads them. */
  private static final class Stored {
    private final Path table;
    private final Configuration conf;
    private final DeletionVectorStore store;
    private final String column;

    Stored(OptimisticTransaction transaction, String column) {
      table = transaction.deltaLog().dataPath();
      conf = transaction.deltaLog().newDeltaHadoopConf();
      store = DeletionVectorStore$.MODULE$.createInstance(conf);
      this.column = column;
    }

    RoaringBitmapArray vector(AddFile file) {
      boolean none = file.deletionVector() == null;
      return none ? new RoaringBitmapArray() : StoredBitmap.create(file.deletionVector(), table).load(store);
    }

    /** Returns the keys of all rows of a file, marked ones included. */
    long[] keys(KnownFile file) {
      Path path = DeltaFileOperations.absolutePath(table.toString(), file.name);
      try (ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromPath(path, conf))) {
        MessageType whole = reader.getFileMetaData().getSchema();
        MessageType schema = new MessageType(whole.getName(), whole.getType(column));
        reader.setRequestedSchema(schema);
        if (reader.getRecordCount() != file.rows) {
          throw new IllegalStateException(path + " has not as many rows as the log says.");
        }
        long[] keys = new long[file.rows];
        int row = 0;
        PageReadStore group;
        while ((group = reader.readNextRowGroup()) != null) {
          ColumnReader values = values(group, schema, reader.getFileMetaData().getCreatedBy());
          boolean wide = values.getDescriptor().getPrimitiveType().getPrimitiveTypeName() == PrimitiveTypeName.INT64;
          for (long left = group.getRowCount(); left > 0; left--) {
            if (values.getCurrentDefinitionLevel() < values.getDescriptor().getMaxDefinitionLevel()) {
              throw new IllegalStateException(path + " has a row without a key.");
            }
            keys[row++] = wide ? values.getLong() : values.getInteger();
            values.consume();
          }
        }
        return keys;
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    private static ColumnReader values(PageReadStore group, MessageType schema, String writer) {
      GroupConverter converter = new DummyRecordConverter(schema).getRootConverter();
      return new ColumnReadStoreImpl(group, converter, schema, writer).getColumnReader(schema.getColumns().get(0));
    }
  }

  private static final class KnownFile {
    final String name;
    final int firstRow;
    final int rows;

    /** The vector that the file has, and the rows that it marks. */
    String vector;

    RoaringBitmapArray gone;

    KnownFile(AddFile file, int firstRow) {
      name = file.path();
      this.firstRow = firstRow;
      rows = Math.toIntExact(physicalRows(file));
      vector = vector(file);
    }

    private static String vector(AddFile file) {
      return file.deletionVector() == null ? "" : file.deletionVector().uniqueId();
    }

    boolean has(int row) {
      return row - firstRow < rows && !gone.contains(row - firstRow);
    }

    /** Takes a file's vector over; returns false if rows are there again that it had marked. */
    boolean follows(AddFile file, Stored stored) {
      String now = vector(file);
      if (vector.equals(now)) {
        return true;
      }
      RoaringBitmapArray before = gone;
      gone = stored.vector(file);
      vector = now;
      before.diff(gone);
      return before.isEmpty();
    }
  }
}
