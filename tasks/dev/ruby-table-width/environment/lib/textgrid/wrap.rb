# frozen_string_literal: true

module Textgrid
  # Paragraphs.
  module Wrap
    module_function

    # The text in lines of at most `width` columns, broken at spaces. A word that is longer has a line of its own.
    # Line breaks of the text are spaces; empty lines part paragraphs, and are kept.
    def wrap(text, width)
      raise ArgumentError, "width must be positive, got #{width}" unless width.positive?

      text.split(/\n[ \t]*\n\s*/).map { |paragraph| fill(paragraph.split, width).join("\n") }.join("\n\n")
    end

    def fill(words, width)
      words.each_with_object([]) do |word, lines|
        if lines.any? && lines.last.length + 1 + word.length <= width
          lines[-1] = "#{lines.last} #{word}"
        else
          lines << word.dup
        end
      end
    end
  end
end
