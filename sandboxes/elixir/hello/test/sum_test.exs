defmodule SumTest do
  use ExUnit.Case

  test "adds" do
    assert Sum.add(2, 3) == 5
  end

  test "adds nothing" do
    assert Sum.add(2, 0) == 2
  end
end
