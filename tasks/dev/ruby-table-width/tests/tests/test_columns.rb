# frozen_string_literal: true

require "minitest/autorun"
require "textgrid"

class ColumnsTest < Minitest::Test
  C = Textgrid::Color

  def table(*names, align: nil)
    names.each_with_index.inject(Textgrid::Table.new(%w[name n], align: align)) { |t, (name, i)| t.add(name, i) }.to_s
  end

  def wrap(text, width)
    Textgrid::Wrap.wrap(text, width)
  end

  def test_colours_take_no_column_in_a_table
    expected = "name  n\n----  -\n#{C.green('up')}    0\ndown  1"
    assert_equal expected, table(C.green("up"), "down")
    assert_equal "name  n\n----  -\n  \e[1;31mup\e[0m  0", table("\e[1;31mup\e[0m", align: %i[right left])
  end

  def test_wide_characters_take_two_columns
    assert_equal "name  n\n----  -\n山田  0\nbob   1", table("山田", "bob")
    assert_equal "name   n\n-----  -\n한국a  0\nab     1", table("한국a", "ab")
    assert_equal "name  n\n----  -\n  🙂  0", table("🙂", align: %i[right left])
    assert_equal "name    n\n------  -\nＡＢＣ  0", table("ＡＢＣ")
  end

  def test_marks_take_no_column
    assert_equal "name  n\n----  -\ncafe\u0301  0\ncafé  1", table("cafe\u0301", "café")
    assert_equal "name  n\n----  -\na\u200Bb    0\n\uFEFFabcd  1", table("a\u200Bb", "\uFEFFabcd")
  end

  def test_halfwidth_characters_take_one_column
    assert_equal "name  n\n----  -\nｱｲｳ   0", table("ｱｲｳ")
    assert_equal "name  n\n----  -\n→ €   0", table("→ €")
  end

  def test_wrap_measures_columns
    assert_equal "#{C.red('one')} two\nthree", wrap("#{C.red('one')} two three", 7)
    assert_equal "山田\n太郎", wrap("山田 太郎", 8)
    assert_equal "山田 太郎", wrap("山田 太郎", 9)
    assert_equal "cafe\u0301 au\nlait", wrap("cafe\u0301 au lait", 7)
  end

  def test_every_line_stands_alone
    assert_equal "\e[31mone\e[0m\n\e[31mtwo\e[0m", wrap(C.red("one two"), 3)
    assert_equal "a \e[31mb\e[0m\n\e[31mc\e[0m d\ne", wrap("a \e[31mb c\e[0m d e", 3)
  end

  def test_sequences_come_back_in_their_order
    text = "\e[1ma \e[31mb c\e[0m d"
    assert_equal "\e[1ma\e[0m\n\e[1m\e[31mb\e[0m\n\e[1m\e[31mc\e[0m\nd", wrap(text, 1)
  end

  def test_an_empty_reset_is_a_reset
    assert_equal "\e[32ma\e[m\nb", wrap("\e[32ma\e[m b", 1)
    assert_equal "\e[32ma\e[0m\n\e[32mb\e[m\nc", wrap("\e[32ma b\e[m c", 1)
  end

  def test_colours_run_from_paragraph_to_paragraph
    assert_equal "\e[33mone\e[0m\n\n\e[33mtwo\e[0m\nsix", wrap("\e[33mone\n\ntwo\e[0m six", 5)
  end

  def test_colours_that_are_left_on_are_turned_off_at_the_end
    assert_equal "\e[31mone\e[0m", wrap("\e[31mone", 5)
  end

  def test_plain_text_stays_plain
    assert_equal "one\ntwo\n\nsix", wrap("one two\n\nsix", 4)
  end
end
