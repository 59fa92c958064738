# frozen_string_literal: true

# Run the minitest tests of a repository and report each.
#
#     run_tests.rb [--report FILE NONCE] [TEST_FILE ...]   (default: every tests/**/test_*.rb below the current directory)
#
# The tests run in a forked child, so that code which leaves the process early can't look like success: the parent alone
# writes the report, and takes a run for complete only after the child's end mark. With --report: JSON lines
# {"id", "status", "message"} closed by {"end": n, "nonce": NONCE}. Without: one line for each failure and a summary.
# Exit code: 0 all passed, 1 something failed or broke, 2 nothing to run or bad usage. It isn't a sandbox.

require "json"
require "minitest"

MESSAGE_LIMIT = 600

# Sends each result through the pipe as soon as it is known.
class Recorder < Minitest::AbstractReporter
  def initialize(pipe)
    super()
    @pipe = pipe
    @root = "#{Dir.pwd}/"
  end

  def record(result)
    file = result.source_location.first.delete_prefix(@root)
    status, message = outcome(result)
    send_record("id" => "#{file}::#{result.klass}##{result.name}", "status" => status, "message" => message)
  end

  def send_record(record)
    @pipe.puts(JSON.generate(record))
    @pipe.flush
  end

  private

  def outcome(result)
    return ["passed", ""] if result.passed?

    failure = result.failure
    return ["skipped", failure.message] if result.skipped?
    return ["failed", one_line(failure.message)] unless result.error?

    error = failure.error
    place = (error.backtrace || []).find { |line| line.start_with?(@root) }
    place = place ? " (#{place.delete_prefix(@root)[/\A[^:]*:\d+/]})" : ""
    ["error", one_line("#{error.class}: #{error.message}") + place]
  end

  def one_line(text)
    text = text.dup.force_encoding("UTF-8").scrub("?").strip
    text = text.sub(/\AExpected: (.*)\n +Actual: (.*)\z/m) { "expected #{Regexp.last_match(1)}, got #{Regexp.last_match(2)}" }
    text[0, MESSAGE_LIMIT]
  end
end

def run_child(files, pipe)
  recorder = Recorder.new(pipe)
  files.each do |file|
    require File.expand_path(file)
  rescue Exception => error # a file that exits or can't be loaded is a failure of that file
    message = "#{error.class}: #{error.message}".scrub("?")[0, MESSAGE_LIMIT]
    recorder.send_record("id" => file, "status" => "error", "message" => message)
  end
  Minitest.seed = 0
  Minitest.__run(recorder, { seed: 0 })
  recorder.send_record("end" => true)
ensure
  $stdout.flush
  exit!(0) # at_exit hooks, minitest/autorun's included, have no say
end

def read_records(pipe)
  records = []
  pipe.each_line do |line|
    record = JSON.parse(line)
    return [records, true] if record.key?("end")

    records << record
  end
  [records, false]
end

def write_report(path, nonce, records, complete)
  lines = records.sort_by { |record| record["id"] }.map { |record| JSON.generate(record) }
  lines << JSON.generate("end" => records.size, "nonce" => nonce) if complete
  File.write(path, lines.map { |line| "#{line}\n" }.join)
end

def print_summary(records, complete)
  bad = records.select { |record| %w[failed error].include?(record["status"]) }
  bad.sort_by { |record| record["id"] }.each do |record|
    label = record["status"] == "failed" ? "FAIL" : "ERROR"
    puts "#{label} #{record['id'].split('::', 2).last}: #{record['message']}"
  end
  puts "ERROR the test process ended early after #{records.size} tests" unless complete
  counts = records.group_by { |record| record["status"] }.transform_values(&:size)
  summary = %w[failed error passed skipped].filter_map { |status| "#{counts[status]} #{status}" if counts[status] }
  puts "#{'ok ' if complete && bad.empty?}#{summary.join(', ')}"
end

def main(arguments)
  report = nonce = nil
  _, report, nonce, *arguments = arguments if arguments.first == "--report"
  files = arguments.empty? ? Dir.glob("tests/**/test_*.rb").sort : arguments
  if files.empty? || (report && nonce.nil?)
    warn "run_tests: no tests/**/test_*.rb below the current directory, or --report without a file name and a nonce"
    return 2
  end
  $LOAD_PATH.push(File.expand_path("lib"), File.expand_path("tests"))
  reading, writing = IO.pipe
  child = fork do
    reading.close
    ARGV.clear
    run_child(files, writing)
  end
  writing.close
  records, complete = read_records(reading)
  _, status = Process.wait2(child)
  complete &&= status.success?
  report ? write_report(report, nonce, records, complete) : print_summary(records, complete)
  is_good = complete && records.any? && records.all? { |record| %w[passed skipped].include?(record["status"]) }
  is_good ? 0 : 1
end

exit(main(ARGV.dup))
