package streamkeeper.cdc;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Actions of Delta's log that give files new deletion vectors, and how many rows these mark. */
public final class DeletionVectors {
  private final List<Action> actions = new ArrayList<>();
  private long rows;

  DeletionVectors() {}

  /**
   * Returns the actions for some files and their new vectors. Each must have its number of rows.
   *
   * <p>The same as Delta's {@code processUnmodifiedData}, which joins the files with the log twice.
   */
  public static DeletionVectors of(List<AddFile> files, List<DeletionVectorDescriptor> vectors) {
    DeletionVectors made = new DeletionVectors();
    for (int number = 0; number < files.size(); number++) {
      made.add(files.get(number), vectors.get(number));
    }
    return made;
  }

  void add(AddFile file, DeletionVectorDescriptor vector) {
    rows += vector.cardinality() - file.numDeletedRecords();
    actions.add(file.removeWithTimestamp(System.currentTimeMillis(), true));
    if (vector.cardinality() < (Long) file.numPhysicalRecords().get()) {
      actions.add(file.removeRows(vector, true, true)._1());
    }
  }

  public Seq<Action> actions() {
    return CollectionConverters.asScala(actions).toSeq();
  }

  public long rows() {
    return rows;
  }
}
