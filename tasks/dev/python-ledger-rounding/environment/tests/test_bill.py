from ledger.bill import Bill
from ledger.money import Money
from ledger.statement import statement


def test_total_takes_the_discount_off():
    bill = Bill("EUR")
    bill.add_item("dinner", "80.00")
    bill.set_discount(25)
    assert bill.total() == Money(6000, "EUR")


def test_items_for_some_are_shared_by_them_only():
    bill = Bill("EUR")
    bill.add_item("dinner", "60.00")
    bill.add_item("wine", "10.00", only_for=["ada", "bo"])
    owed = bill.split({"ada": 1, "bo": 1, "cy": 1})
    assert [owed[name].cents for name in ("ada", "bo", "cy")] == [2500, 2500, 2000]


def test_statement_has_a_line_each():
    bill = Bill("EUR")
    bill.add_item("dinner", "30.00")
    assert statement(bill, {"ada": 2, "bo": 1}) == "ada: 20.00 EUR\nbo: 10.00 EUR\ntotal: 30.00 EUR"
