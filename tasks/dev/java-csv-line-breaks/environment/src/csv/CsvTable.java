package csv;

import java.util.List;

/** Records below a header. */
public final class CsvTable {
    private final List<List<String>> records;

    private CsvTable(List<List<String>> records) {
        this.records = records;
    }

    public static CsvTable parse(String text, CsvFormat format) {
        List<List<String>> records = new CsvReader(format).read(text);
        if (records.isEmpty()) {
            throw new CsvException("there is no header", 1);
        }
        return new CsvTable(records);
    }

    /** The header and all records below it. */
    public List<List<String>> rows() {
        return records;
    }

    public int size() {
        return records.size() - 1;
    }

    /** A field by its row, counted from 0 below the header, and its column's name; "" where the row is too short. */
    public String get(int row, String column) {
        int index = records.get(0).indexOf(column);
        if (index < 0) {
            throw new IllegalArgumentException("no column " + column);
        }
        List<String> record = records.get(row + 1);
        return index < record.size() ? record.get(index) : "";
    }
}
