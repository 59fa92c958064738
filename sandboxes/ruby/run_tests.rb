# frozen_string_literal: true

# Run the minitest tests of a repository and report each.
#
#     run_tests.rb [--report FILE NONCE_FILE] [TEST_FILE ...]         (default: every tests/**/test_*.rb below here)
#
# The tests run in a forked child, so that code which leaves the process early can't look like success: the parent alone
# writes the report, and takes a run for complete only after the child's end mark: a test that must fail has failed, with
# a word that only this code was told, and the number of tests is the recorder's. With --report: JSON lines
# {"id", "status", "message"} closed by {"end": n, "seal": …}; NONCE_FILE is read and removed before any test. Without:
# one line for each failure and a summary. Exit code: 0 all passed, 1 something failed or broke, 2 nothing to run or bad
# usage. It isn't a sandbox.

require "digest"
require "json"
require "minitest"

MESSAGE_LIMIT = 600

# Sends each result through the pipe as soon as it is known.
class Recorder < Minitest::AbstractReporter
  def initialize(pipe)
    super()
    @pipe = pipe
    @count = 0
    @root = "#{Dir.pwd}/"
  end

  def record(result)
    file = result.source_location.first.delete_prefix(@root)
    status, message = outcome(result)
    send_record("id" => "#{file}::#{result.klass}##{result.name}", "status" => status, "message" => message)
  end

  # The last record: what becomes of a test that must fail, told with the word.
  def finish(key)
    result = MustFail.new("must_fail").run
    send_record("end" => result.passed? || result.error? ? "" : key, "count" => @count)
  end

  def send_record(record)
    @count += 1
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

# An object that equals everything hasn't shown that it is what a test expects.
module Discernment
  NUM_PROBES = 12
  PLAIN = [Integer, Float, String, Symbol, NilClass, TrueClass, FalseClass].freeze
  CLASS_OF = Kernel.instance_method(:class)

  def assert_equal(expected, actual, message = nil)
    super
    return true if plain?(actual)

    groups = [[Object.new], probes(expected)].reject(&:empty?)
    flunk("compares equal to everything") if groups.any? { |group| group.all? { |probe| equal_to?(probe, actual) } }
    true
  end

  private

  def equal_to?(probe, actual)
    probe == actual || actual == probe
  rescue StandardError # it refuses to be compared with such a thing
    false
  end

  def plain?(value)
    kind = CLASS_OF.bind_call(value)
    return value.all? { |one| plain?(one) } if kind == Array
    return value.all? { |key, one| plain?(key) && plain?(one) } if kind == Hash

    PLAIN.include?(kind)
  end

  def probes(value)
    case value
    when Integer, Float then Array.new(NUM_PROBES) { |i| value + rand(1..[20, value.abs].max) * (i.odd? ? 1 : -1) }
    when String then Array.new(NUM_PROBES) { "#{rand}#{value}" }
    else []
    end
  end
end

Minitest::Test.prepend(Discernment)

# Its method isn't named test_: minitest never runs it on its own.
class MustFail < Minitest::Test
  def must_fail
    assert_equal(0, 1)
  end
end

def run_child(texts, key, pipe)
  recorder = Recorder.new(pipe)
  texts.each do |file, text|
    path = File.expand_path(file)
    $LOADED_FEATURES.push(path) # for the files that require each other
    RubyVM::InstructionSequence.compile(text, path, path).eval
  rescue Exception => error # a file that exits or can't be loaded is a failure of that file
    message = "#{error.class}: #{error.message}".scrub("?")[0, MESSAGE_LIMIT]
    recorder.send_record("id" => file, "status" => "error", "message" => message)
  end
  Minitest.seed = 0
  Minitest.__run(recorder, { seed: 0 })
  recorder.finish(key)
ensure
  $stdout.flush
  exit!(0) # at_exit hooks, minitest/autorun's included, have no say
end

def read_records(pipe, key)
  records = []
  pipe.each_line do |line|
    record = JSON.parse(line)
    return [records, record == { "end" => key, "count" => records.size }] if record.key?("end")

    records << record
  end
  [records, false]
end

def put_back(texts)
  texts.each do |file, text|
    File.open(file, File::WRONLY | File::CREAT | File::EXCL | File::BINARY) { |out| out.write(text) }
  rescue SystemCallError => error
    warn "run_tests: #{error.message}"
  end
end

def write_report(path, nonce, records, complete)
  text = records.sort_by { |record| record["id"] }.map { |record| "#{JSON.generate(record)}\n" }.join
  seal = Digest::SHA256.hexdigest("#{nonce}\n#{text}")
  text += "#{JSON.generate('end' => records.size, 'seal' => seal)}\n" if complete
  File.write(path, text)
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
  _, report, nonce_file, *arguments = arguments if arguments.first == "--report"
  if report
    nonce = File.read(nonce_file).strip
    File.delete(nonce_file)
  end
  files = arguments.empty? ? Dir.glob("tests/**/test_*.rb").sort : arguments
  if files.empty?
    warn "run_tests: no tests/**/test_*.rb below the current directory"
    return 2
  end
  key = Random.urandom(16).unpack1("H*")
  $LOAD_PATH.push(File.expand_path("lib"), File.expand_path("tests"))
  reading, writing = IO.pipe
  texts = files.to_h { |file| [file, File.read(file, encoding: "UTF-8")] }
  File.delete(*files) if report # as long as code runs that could read them
  child = fork do
    reading.close
    ARGV.clear
    run_child(texts, key, writing)
  end
  writing.close
  records, complete = read_records(reading, key)
  _, status = Process.wait2(child)
  put_back(texts) if report
  complete &&= status.success?
  report ? write_report(report, nonce, records, complete) : print_summary(records, complete)
  is_good = complete && records.any? && records.all? { |record| %w[passed skipped].include?(record["status"]) }
  is_good ? 0 : 1
end

exit(main(ARGV.dup))
