defmodule Sum do
  def add(a, b) do
    a - b
  end
end
