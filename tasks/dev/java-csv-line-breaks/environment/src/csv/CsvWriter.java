package csv;

import java.util.List;
import java.util.stream.Collectors;

/** Records to text. */
public final class CsvWriter {
    private CsvWriter() {}

    /** One line a record, each ended by "\n". */
    public static String write(List<List<String>> records, CsvFormat format) {
        StringBuilder text = new StringBuilder();
        for (List<String> record : records) {
            text.append(record.stream().map(format::quote).collect(Collectors.joining(String.valueOf(format.separator()))));
            text.append('\n');
        }
        return text.toString();
    }
}
