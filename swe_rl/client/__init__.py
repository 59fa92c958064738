"""The policy side's only way to a sandbox: clients of the sandbox service, asynchronous and synchronous.

Calls that may be repeated safely are retried after failures of the connection; a command never is, since it may have
run. An answer that isn't 2xx becomes the class of swe_rl.errors that it names, through a fixed table: nothing that a
server names is ever imported or evaluated.
"""

from swe_rl.client.asynchronous import SandboxClient
from swe_rl.client.attempts import TOKEN_VARIABLE
from swe_rl.client.synchronous import SyncSandboxClient

__all__ = ["TOKEN_VARIABLE", "SandboxClient", "SyncSandboxClient"]
