# frozen_string_literal: true

require "minitest/autorun"
require "textgrid"

class WrapTest < Minitest::Test
  def test_lines_are_filled
    assert_equal "the quick\nbrown fox", Textgrid::Wrap.wrap("the quick brown fox", 9)
  end

  def test_a_long_word_has_a_line_of_its_own
    assert_equal "a\nlonger\nb", Textgrid::Wrap.wrap("a longer b", 3)
  end

  def test_paragraphs_are_kept
    assert_equal "one two\n\nthree", Textgrid::Wrap.wrap("one\ntwo\n\nthree", 20)
  end

  def test_a_width_of_nothing_is_refused
    assert_raises(ArgumentError) { Textgrid::Wrap.wrap("a", 0) }
  end
end
