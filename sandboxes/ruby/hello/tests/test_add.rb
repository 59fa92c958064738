require "minitest/autorun"
require "add"

class TestAdd < Minitest::Test
  def test_adds
    assert_equal 5, add(2, 3)
  end

  def test_adds_nothing
    assert_equal 2, add(2, 0)
  end
end
