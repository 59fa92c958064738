from add import add


def test_adds():
    assert add(2, 3) == 5


def test_adds_nothing():
    assert add(2, 0) == 2
