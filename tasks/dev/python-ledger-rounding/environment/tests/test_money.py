from ledger.money import CurrencyMismatch, Money


def eur(cents):
    return Money(cents, "EUR")


def test_parse_reads_cents():
    assert Money.parse("12.3", "EUR") == eur(1230)
    assert Money.parse("-0.05", "EUR") == eur(-5)


def test_percent_rounds_half_a_cent_away_from_zero():
    assert eur(150).percent(1) == eur(2)
    assert eur(-150).percent(1) == eur(-2)


def test_allocate_in_even_parts():
    assert eur(900).allocate([1, 1, 1]) == [eur(300)] * 3
    assert eur(1000).allocate([3, 1]) == [eur(750), eur(250)]


def test_allocate_refuses_bad_weights():
    for weights in ([0, 0], [2, -1]):
        try:
            eur(100).allocate(weights)
        except ValueError:
            continue
        raise AssertionError(f"{weights} was accepted")


def test_currencies_do_not_mix():
    try:
        eur(1) + Money(1, "USD")
    except CurrencyMismatch:
        return
    raise AssertionError("EUR and USD were added")
