# Recipe of Elixir: compile all of lib/ in memory, run one file of ExUnit tests, write each test's outcome as TAP to $TAP_FILE
# and failures to stdout.
#     elixir ex_unit.exs TEST_FILE
# The TAP is written when ExUnit has come to its end: a process that ends early leaves none.
defmodule TapFormatter do
  use GenServer

  def init(_options), do: {:ok, []}

  def handle_cast({:test_finished, test}, lines) do
    name = String.replace_prefix(Atom.to_string(test.name), "test ", "")
    number = length(lines) + 1

    line =
      case test.state do
        nil -> "ok #{number} - #{name}"
        {:failed, _} -> "not ok #{number} - #{name}"
        {:invalid, _} -> "not ok #{number} - #{name}"
        {_skipped_or_excluded, _} -> "ok #{number} - #{name} # SKIP"
      end

    with {:failed, failures} <- test.state do
      text = ExUnit.Formatter.format_test_failure(test, failures, 1, 120, fn _key, text -> text end)
      IO.puts("FAIL #{name}:\n" <> (text |> String.split("\n", trim: true) |> Enum.drop(1) |> Enum.join("\n")))
    end

    {:noreply, [line | lines]}
  end

  def handle_cast({:suite_finished, _times}, lines) do
    send(:runner, {:lines, Enum.reverse(lines)})
    {:noreply, lines}
  end

  def handle_cast(_event, lines), do: {:noreply, lines}
end

[file] = System.argv()
tap_file = System.fetch_env!("TAP_FILE")
System.delete_env("TAP_FILE")
Process.register(self(), :runner)
ExUnit.start(autorun: false, formatters: [TapFormatter], seed: 0, max_cases: 1)
{:ok, _, _} = Kernel.ParallelCompiler.compile(Enum.sort(Path.wildcard("lib/**/*.ex")), return_diagnostics: false)
Code.require_file(file)
ExUnit.run()

receive do
  {:lines, lines} ->
    File.write!(tap_file, Enum.join(lines ++ ["1..#{length(lines)}"], "\n") <> "\n")
    failed = Enum.count(lines, &String.starts_with?(&1, "not"))
    System.halt(if failed == 0, do: 0, else: 100 + min(99, failed))
after
  5_000 -> System.halt(1)
end
