# frozen_string_literal: true

module Textgrid
  # Rows of cells below a header; `align` is :left or :right for each column.
  class Table
    GAP = "  "

    def initialize(header, align: nil)
      @header = header.map(&:to_s)
      @align = align || [:left] * header.size
      raise ArgumentError, "#{@align.size} alignments for #{header.size} columns" if @align.size != header.size

      @rows = []
    end

    # Adds a row and returns the table. Missing cells are empty; too many are an error.
    def add(*cells)
      raise ArgumentError, "#{cells.size} cells for #{@header.size} columns" if cells.size > @header.size

      @rows << Array.new(@header.size) { |index| cells[index].to_s }
      self
    end

    def to_s
      widths = column_widths
      lines = [@header, widths.map { |width| "-" * width }, *@rows]
      lines.map { |cells| line(cells, widths) }.join("\n")
    end

    private

    def column_widths
      [@header, *@rows].transpose.map { |cells| cells.map(&:length).max }
    end

    def line(cells, widths)
      cells.each_with_index.map { |cell, index| pad(cell, widths[index], @align[index]) }.join(GAP).rstrip
    end

    def pad(cell, width, align)
      align == :right ? cell.rjust(width) : cell.ljust(width)
    end
  end
end
