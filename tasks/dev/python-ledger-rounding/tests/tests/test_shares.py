from ledger.bill import Bill
from ledger.money import Money


def cents(amount, weights):
    return [share.cents for share in Money(amount, "EUR").allocate(weights)]


def check(actual, expected):
    assert actual == expected, f"expected {expected}, got {actual}"


def test_left_over_cents_go_to_the_first_of_equals():
    check(cents(10000, [1, 1, 1]), [3334, 3333, 3333])
    check(cents(5, [1, 1]), [3, 2])
    check(cents(3, [1, 1]), [2, 1])


def test_the_largest_fraction_gets_the_cent():
    check(cents(100, [1, 5, 1]), [14, 72, 14])
    check(cents(10, [3, 3, 1]), [4, 4, 2])
    check(cents(101, [1, 2, 4]), [14, 29, 58])


def test_weight_zero_pays_nothing():
    check(cents(1, [0, 1, 0]), [0, 1, 0])
    check(cents(2, [0, 1, 1, 1]), [0, 1, 1, 0])


def test_a_refund_mirrors_the_payment():
    for amount in (1, 5, 100, 101, 9999):
        for weights in ([1, 1], [1, 2, 4], [0, 3, 1], [7]):
            check(cents(-amount, weights), [-share for share in cents(amount, weights)])


def test_shares_of_huge_amounts_are_exact():
    amount = 123456789012345678
    shares = cents(amount, [1, 1, 1])
    check(sum(shares), amount)
    check(shares[0] - shares[2], 0 if amount % 3 == 0 else 1)


def test_shares_sum_up_for_many_amounts():
    for amount in range(0, 300):
        for weights in ([1, 1, 1], [2, 3, 5, 7], [0, 1], [10, 1, 1]):
            check(sum(cents(amount, weights)), amount)


def test_a_split_bill_sums_up_to_the_discounted_total():
    bill = Bill("EUR")
    for name in "abc":
        bill.add_item(name, "0.50")
    bill.set_discount(1)
    owed = bill.split({"ada": 1, "bo": 1})
    check(sum(amount.cents for amount in owed.values()), bill.total().cents)


def test_the_discount_is_spread_over_the_items():
    bill = Bill("EUR")
    bill.add_item("wine", "0.50", only_for=["ada"])
    bill.add_item("bread", "0.50", only_for=["bo"])
    bill.add_item("soup", "0.50", only_for=["cy"])
    bill.set_discount(1)
    owed = bill.split({"ada": 1, "bo": 1, "cy": 1})
    check([owed[name].cents for name in ("ada", "bo", "cy")], [49, 49, 50])


def test_split_bills_sum_up_with_items_for_some():
    for rate in range(0, 101, 7):
        bill = Bill("EUR")
        bill.add_item("dinner", "84.51")
        bill.add_item("taxi", "19.93", only_for=["bo", "cy"])
        bill.add_item("tip", "5.00")
        bill.set_discount(rate)
        owed = bill.split({"ada": 2, "bo": 1, "cy": 1})
        check(sum(amount.cents for amount in owed.values()), bill.total().cents)


def test_an_empty_bill_owes_nothing():
    bill = Bill("EUR")
    bill.set_discount(10)
    check([amount.cents for amount in bill.split({"ada": 1}).values()], [0])


def test_a_bill_of_free_items_owes_nothing():
    bill = Bill("EUR")
    bill.add_item("tap water", "0.00")
    bill.set_discount(10)
    check([amount.cents for amount in bill.split({"ada": 1, "bo": 2}).values()], [0, 0])
