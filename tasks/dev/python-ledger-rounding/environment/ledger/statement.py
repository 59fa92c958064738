"""Text for people."""


def statement(bill, weights):
    """One line a person, and the total that the restaurant wants to see."""
    lines = [f"{name}: {amount}" for name, amount in bill.split(weights).items()]
    lines.append(f"total: {bill.total()}")
    return "\n".join(lines)
