package streamkeeper.cdc;

/**
 * The number of the row of each key: a hash table of primitive values, 12 bytes a slot.
 *
 * <p>In small pieces, since a heap seldom has a hundred megabytes in a row. Nothing is removed: whoever asks
 * must know which numbers still count.
 */
final class Places {
  private static final int BITS = 12;
  private static final int PIECE = 1 << BITS;
  private static final int BYTES_A_SLOT = Long.BYTES + Integer.BYTES;

  /** There is no room for another key. */
  static final class Full extends RuntimeException {
    private static final long serialVersionUID = 1;
  }

  private final int most;
  private final int capacity;
  private final long[][] keys;
  /** One more than the row's number; 0 in a free slot. */
  private final int[][] rows;
  private int used;

  /** Makes a table for some keys, which fill three quarters of it, so that it is searched quickly. */
  Places(int most) {
    this.most = most;
    capacity = most + most / 3 + 1;
    int pieces = (capacity + PIECE - 1) >>> BITS;
    keys = new long[pieces][PIECE];
    rows = new int[pieces][PIECE];
  }

  /** Returns how many bytes it takes. */
  long bytes() {
    return (long) rows.length * PIECE * BYTES_A_SLOT;
  }

  /** Returns how many keys a table of some bytes takes. */
  static long keysIn(long bytes) {
    return Math.min(Integer.MAX_VALUE / 2, (bytes / BYTES_A_SLOT - PIECE) * 3 / 4);
  }

  /** Returns the row of a key; -1 if it has none. */
  int get(long key) {
    int slot = slot(key);
    return rows[slot >>> BITS][slot & (PIECE - 1)] - 1;
  }

  /** Sets the row of a key, and returns the one before; -1 if it had none. */
  int put(long key, int row) {
    int slot = slot(key);
    int piece = slot >>> BITS;
    int place = slot & (PIECE - 1);
    int before = rows[piece][place] - 1;
    if (before < 0) {
      if (used == most) {
        throw new Full();
      }
      keys[piece][place] = key;
      used++;
    }
    rows[piece][place] = row + 1;
    return before;
  }

  /** Returns the slot of a key, or the free one where it belongs. */
  private int slot(long key) {
    long mixed = (key ^ (key >>> 32)) * 0x9E3779B97F4A7C15L;
    int slot = (int) (((mixed >>> 32) * capacity) >>> 32);
    while (true) {
      int piece = slot >>> BITS;
      int place = slot & (PIECE - 1);
      if (rows[piece][place] == 0 || keys[piece][place] == key) {
        return slot;
      }
      slot = slot + 1 == capacity ? 0 : slot + 1;
    }
  }
}
