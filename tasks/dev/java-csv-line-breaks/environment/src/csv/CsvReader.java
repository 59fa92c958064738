package csv;

import java.util.ArrayList;
import java.util.List;

/** Text to records. */
public final class CsvReader {
    private final CsvFormat format;

    public CsvReader(CsvFormat format) {
        this.format = format;
    }

    /** All records; lines may end with "\n" or "\r\n", the last one needn't end at all. Empty lines are skipped. */
    public List<List<String>> read(String text) {
        List<List<String>> records = new ArrayList<>();
        String[] lines = text.split("\r?\n");
        for (int number = 0; number < lines.length; number++) {
            if (!lines[number].isEmpty()) {
                records.add(readRecord(lines[number], number + 1));
            }
        }
        return records;
    }

    private List<String> readRecord(String line, int number) {
        List<String> fields = new ArrayList<>();
        StringBuilder field = new StringBuilder();
        boolean quoted = false;
        for (int i = 0; i < line.length(); i++) {
            char letter = line.charAt(i);
            if (letter == '"') {
                quoted = !quoted;
            } else if (letter == format.separator() && !quoted) {
                fields.add(field.toString());
                field.setLength(0);
            } else {
                field.append(letter);
            }
        }
        if (quoted) {
            throw new CsvException("a quote isn't closed", number);
        }
        fields.add(field.toString());
        return fields;
    }
}
