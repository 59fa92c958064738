"""A bill that several people share."""

from ledger.money import Money


class Bill:
    """Items and a discount; `split` says what each person owes."""

    def __init__(self, currency):
        self.currency = currency
        self.items = []
        self.discount_rate = 0

    def add_item(self, name, amount, only_for=None):
        """`only_for`: names of the people who share this item; everybody if None."""
        price = Money.parse(amount, self.currency)
        if price.cents < 0:
            raise ValueError(f"{name} costs less than nothing: {price}; use a discount")
        self.items.append((name, price, only_for))

    def set_discount(self, rate):
        """`rate` per cent off the whole bill."""
        if not 0 <= rate <= 100:
            raise ValueError(f"a discount is 0 to 100 per cent, got {rate}")
        self.discount_rate = rate

    def subtotal(self):
        amount = Money(0, self.currency)
        for _, price, _ in self.items:
            amount += price
        return amount

    def total(self):
        amount = self.subtotal()
        return amount - amount.percent(self.discount_rate)

    def split(self, weights):
        """What each person owes: {name: Money}. `weights` are whole numbers by name."""
        owed = {name: Money(0, self.currency) for name in weights}
        for _, price, only_for in self.items:
            names = [name for name in weights if only_for is None or name in only_for]
            net = price - price.percent(self.discount_rate)
            for name, share in zip(names, net.allocate([weights[name] for name in names])):
                owed[name] += share
        return owed
