# frozen_string_literal: true

require "minitest/autorun"
require "textgrid"

class TableTest < Minitest::Test
  def test_columns_are_aligned
    table = Textgrid::Table.new(%w[name size], align: %i[left right]).add("readme", "1 kB").add("photos", "12 MB")
    assert_equal "name     size\n------  -----\nreadme   1 kB\nphotos  12 MB", table.to_s
  end

  def test_missing_cells_are_empty
    assert_equal "a  b\n-  -\n1", Textgrid::Table.new(%w[a b]).add(1).to_s
  end

  def test_too_many_cells_are_refused
    assert_raises(ArgumentError) { Textgrid::Table.new(%w[a]).add(1, 2) }
  end

  def test_a_table_without_rows_has_its_header
    assert_equal "name\n----", Textgrid::Table.new(%w[name]).to_s
  end
end
