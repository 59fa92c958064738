"""What a runner closes its report with: nobody who changes a line afterwards can say the same of it.

A process that the product's code left running may rewrite a report that is written already. It hasn't seen the nonce.
"""

from hashlib import sha256


def seal(nonce: str, report: bytes) -> str:
    """SHA-256, in hexadecimal, of the nonce, a newline, and all lines of the report but the last."""
    body = report[: report[:-1].rfind(b"\n") + 1]
    return sha256(nonce.encode() + b"\n" + body).hexdigest()
