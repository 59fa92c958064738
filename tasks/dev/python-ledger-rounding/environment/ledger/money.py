"""An amount of money in whole cents of one currency."""


class CurrencyMismatch(ValueError):
    """Two amounts of different currencies met."""


class Money:
    """Immutable. `Money.parse("12.34", "EUR").cents == 1234`."""

    __slots__ = ("cents", "currency")

    def __init__(self, cents, currency):
        if not isinstance(cents, int):
            raise TypeError(f"cents must be an int, got {cents!r}")
        object.__setattr__(self, "cents", cents)
        object.__setattr__(self, "currency", currency)

    def __setattr__(self, name, value):
        raise AttributeError("Money can't be changed")

    @classmethod
    def parse(cls, text, currency):
        """From "12", "12.3", "12.34" or "-0.05"."""
        sign = -1 if text.startswith("-") else 1
        whole, _, fraction = text.lstrip("-").partition(".")
        if not whole.isdigit() or len(fraction) > 2 or (fraction and not fraction.isdigit()):
            raise ValueError(f"not an amount: {text!r}")
        return cls(sign * (int(whole) * 100 + int(fraction.ljust(2, "0"))), currency)

    def __add__(self, other):
        self._check(other)
        return Money(self.cents + other.cents, self.currency)

    def __sub__(self, other):
        self._check(other)
        return Money(self.cents - other.cents, self.currency)

    def __neg__(self):
        return Money(-self.cents, self.currency)

    def __eq__(self, other):
        if not isinstance(other, Money):
            return NotImplemented
        return (self.cents, self.currency) == (other.cents, other.currency)

    def __hash__(self):
        return hash((self.cents, self.currency))

    def __repr__(self):
        return f"Money({self.cents}, {self.currency!r})"

    def __str__(self):
        sign = "-" if self.cents < 0 else ""
        return f"{sign}{abs(self.cents) // 100}.{abs(self.cents) % 100:02d} {self.currency}"

    def percent(self, rate):
        """`rate` per cent of the amount, half a cent rounded away from zero."""
        scaled = abs(self.cents) * rate
        cents = (scaled + 50) // 100
        return Money(cents if self.cents >= 0 else -cents, self.currency)

    def allocate(self, weights):
        """Shares of the amount in proportion to whole-number weights, in their order."""
        total = sum(weights)
        if total <= 0 or min(weights) < 0:
            raise ValueError("weights must be at least 0, and one of them more")
        return [Money(round(self.cents * weight / total), self.currency) for weight in weights]

    def _check(self, other):
        if self.currency != other.currency:
            raise CurrencyMismatch(f"{self.currency} and {other.currency}")
