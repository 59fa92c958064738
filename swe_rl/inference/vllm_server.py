"""Starts, watches and stops one real vLLM server process on this machine.

A policy directory and the engine's knobs flow in, a base URL flows out once the server is healthy. The server runs
under `vllm_guard`, so it ends when this process ends. Generation and weight updates are `swe_rl.inference.vllm`'s.

The development routes that weight updates need have no authentication: bind a loopback or a private address only.
"""

import asyncio
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from swe_rl.config import EngineConfig
from swe_rl.errors import EngineError, EngineUnavailableError, PolicyError
from swe_rl.inference.vllm_wire import MODEL_NAME

logger = logging.getLogger(__name__)

PLUGIN_MODULE = "swe_rl_vllm_plugin"

_ENTRY = "vllm.entrypoints.launchers.api_server.entry"
_GRACE_S = 10.0
_NEEDS_FOR_EXPERTS = (
    "; engine.return_routed_experts needs a policy with experts and Model Runner V2, which no vLLM on a CPU has"
)
_MIB = 1024 * 1024
_MIN_KV_BYTES, _MAX_KV_BYTES = 128 * _MIB, 2048 * _MIB


class VllmServer:
    """One server of `policy_dir`. `work_dir` receives its log and the plugin; `port` 0 picks a free one.

    `seed` feeds the sampler of the whole process (a request never carries one); None draws a fresh one, so that a
    restarted server doesn't repeat the samples of the last. `replica`: which of several servers on this machine it is.
    """

    def __init__(
        self,
        config: EngineConfig,
        policy_dir: Path,
        work_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int | None = None,
        replica: int = 0,
        start_timeout_s: float = 1200.0,
    ) -> None:
        self.log_file = work_dir / "vllm.log"
        self._config = config
        self._policy_dir = policy_dir.resolve()
        self._work_dir = work_dir.resolve()
        self._host = host
        self._port = port
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self._replica = replica
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    async def start(self) -> str:
        """Returns the base URL when the server is healthy. Raises PolicyError, EngineError, EngineUnavailableError."""
        if self.is_alive:
            raise EngineError(f"vllm {self.url}: is already running; stop it first")
        port = self._port or _free_port(self._host)
        command = self._command(port, _kv_cache_bytes(self._policy_dir, self._config))
        self._install_plugin()
        began = time.monotonic()
        self._process = self._spawn(command)
        self.url = f"http://{self._host}:{port}"
        try:
            await self._wait_until_healthy()
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self.stop))
            raise
        logger.info(
            "vllm %s: healthy after %.1f s, policy %s, seed %d, log %s",
            self.url,
            time.monotonic() - began,
            self._policy_dir,
            self._seed,
            self.log_file,
        )
        return self.url

    def stop(self) -> None:
        """Ends the server and all its processes; blocks until they are gone. Idempotent."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def describe_end(self) -> str:
        """One clause on why the process isn't there, for an error message."""
        code = self.exit_code
        state = "runs" if self.is_alive else f"its process ended with code {code}"
        return f"{state}; see {self.log_file}"

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        guard = [sys.executable, "-I", str(Path(__file__).with_name("vllm_guard.py")), str(_GRACE_S)]
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                guard + command,
                stdin=subprocess.PIPE,  # closed by the kernel when this process ends: the guard's signal
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self._work_dir,
            )

    def _command(self, port: int, kv_cache_bytes: int) -> list[str]:
        config = self._config
        return [
            *(_interpreter(config), "-m", _ENTRY),
            *("--model", str(self._policy_dir), "--served-model-name", MODEL_NAME),
            *("--host", self._host, "--port", str(port), "--seed", str(self._seed)),
            *("--dtype", config.dtype, "--max-model-len", str(config.max_context)),
            *("--max-num-seqs", str(config.max_batch), "--kv-cache-memory-bytes", str(kv_cache_bytes)),
            # A generation_config.json of the policy must not truncate the distribution behind our back.
            *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"),
            *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *("--enable-scale-out", "--disable-uvicorn-access-log"),
            *("--weight-transfer-config", json.dumps({"backend": "swe_rl_file"})),
            *("--worker-extension-cls", f"{PLUGIN_MODULE}.WorkerExtension"),
            *(["--enable-return-routed-experts"] if config.return_routed_experts else []),
        ]

    def _environment(self) -> dict[str, str]:
        # Tokens of other services and a KV size that would override the flag stay out.
        dropped = ("SWE_RL_", "VLLM_CPU_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        return env | {
            "PYTHONPATH": str(self._work_dir / "plugin"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            # --enforce-eager leaves one function of the sampler compiled: 25 s in the first request, and needs gcc.
            "TORCH_COMPILE_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(cpu) for cpu in _cpus(self._config.num_threads, self._replica)),
            "OMP_NUM_THREADS": str(self._config.num_threads),
            **({"VLLM_USE_V2_MODEL_RUNNER": "1"} if self._config.return_routed_experts else {}),
        }

    def _install_plugin(self) -> None:
        # A copy under its own name: the folder of the original holds a vllm.py, which must not shadow vLLM.
        folder = self._work_dir / "plugin"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(__file__).with_name("vllm_plugin.py"), folder / f"{PLUGIN_MODULE}.py")

    async def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        async with httpx.AsyncClient(base_url=self.url, timeout=5.0) as client:
            while time.monotonic() < deadline:
                if not self.is_alive:
                    raise EngineUnavailableError(f"vllm {self.url}: didn't start, {self._complaint()}")
                try:
                    if (await client.get("/health")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass  # not listening yet
                await asyncio.sleep(0.25)
        raise EngineUnavailableError(
            f"vllm {self.url}: not healthy after {self._start_timeout_s:g} s; see {self.log_file}"
        )

    def _complaint(self) -> str:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        # what a check of vLLM's configuration has to say stands in the line after its name
        errors = [line.strip() for line in lines if "Error" in line or "Value error" in line]
        if not errors:
            return self.describe_end()
        lacks = "No module named" in errors[-1] and "vllm" in errors[-1]
        advice = "; set engine.vllm_python to an interpreter that has vLLM" if lacks else ""
        advice += _NEEDS_FOR_EXPERTS if self._config.return_routed_experts else ""
        return f"{errors[-1][:300]!r}; {self.describe_end()}{advice}"


def _interpreter(config: EngineConfig) -> str:
    """A path is taken from where the command was given, as the server runs elsewhere; a link stays one (a venv's)."""
    python = config.vllm_python or sys.executable
    return os.path.abspath(python) if os.sep in python else python


def _cpus(count: int, replica: int) -> list[int]:
    """The processors that the worker's threads are bound to: threads that share one spin and are 3-10x slower.

    Replicas take the processors in turn, and begin anew where there are no more.
    """
    available = sorted(os.sched_getaffinity(0))
    if count > len(available):
        raise EngineError(f"engine: num_threads is {count}, but only {len(available)} processors are available")
    return [available[(replica * count + index) % len(available)] for index in range(count)]


def _free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def _kv_cache_bytes(policy_dir: Path, config: EngineConfig) -> int:
    """Room for `max_batch` full contexts, within bounds: 2 (K, V) * layers * kv heads * head size * bytes a token."""
    file = policy_dir / "config.json"
    try:
        model = json.loads(file.read_text(encoding="utf-8"))
        heads = int(model["num_attention_heads"])
        head_dim = int(model.get("head_dim") or model["hidden_size"] // heads)
        kv_heads = int(model.get("num_key_value_heads") or heads)
        layers = int(model["num_hidden_layers"])
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(f"policy {policy_dir}: config.json can't be read: {error!r}") from error
    width = 4 if config.dtype == "float32" else 2
    needed = 2 * layers * kv_heads * head_dim * width * config.max_context * config.max_batch
    return min(max(needed, _MIN_KV_BYTES), _MAX_KV_BYTES)
