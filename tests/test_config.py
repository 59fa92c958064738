"""Configuration: shipped files load, and every mistake is one line that names file and key."""

from pathlib import Path

import pytest

from swe_rl.config import Config, load_config, shipped_configs
from swe_rl.errors import ConfigError


@pytest.mark.parametrize("name", shipped_configs())
def test_each_shipped_config_loads_and_survives_its_own_dump(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    dumped = tmp_path / "config.json"
    dumped.write_text(config.model_dump_json())
    assert load_config(dumped) == config


def test_there_are_shipped_configs() -> None:
    assert "quickstart" in shipped_configs()


@pytest.mark.parametrize("section", list(Config.model_fields))
def test_an_unknown_key_is_refused_in_every_section_and_named(section: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key '{section}.frobnicate'; expected one of"):
        load_config(None, [f"{section}.frobnicate=1"])


def test_an_unknown_section_is_refused_and_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'frob'.*train"):
        load_config(None, ["frob.key=1"])


@pytest.mark.parametrize(
    ("override", "meant"),
    [("train.step=1", "steps"), ("trian.steps=1", "train"), ("train.kl_coef=1", "loss.kl_coef")],
)
def test_an_unknown_key_is_told_the_nearest_known_one(override: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        load_config(None, [override])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train.lr=-1", "train.lr"),
        ("train.lr=fast", "train.lr"),
        ("mask.rule=kpopp", "mask.rule"),
        ("mask.phi=0", "mask.phi"),
        ("rollout.group_size=0", "rollout.group_size"),
        ("engine.kind=cuda", "engine.kind"),
        ("eval.ks=[]", "eval.ks"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_key_and_the_value(override: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [override])
    message = str(caught.value)
    assert key in message
    assert "quickstart" in message
    assert "\n" not in message


@pytest.mark.parametrize("override", ["lr=1", "train.lr", "=1", "train.=1", ".lr=1", ""])
def test_an_override_that_is_no_assignment_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load_config(None, [override])


def test_targets_of_adapters_that_there_are_none_of_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora_targets is \['q_proj'\], expected train.lora_rank above 0"):
        load_config(None, ["train.lora_targets=['q_proj']"])


@pytest.mark.parametrize("num_groups", [1, 3, 49, 999])
def test_a_back_fill_of_one_group_is_one_group_however_its_share_is_rounded(num_groups: int) -> None:
    options = [f"rollout.max_backfill={1 / num_groups!r}", f"rollout.groups_per_step={num_groups}"]
    assert load_config(None, options).rollout.num_backfill == 1


def test_an_override_takes_toml_values_and_bare_words() -> None:
    config = load_config("quickstart", ["train.lr=1e-4", "run.name=abc", "eval.ks=[1,2]", "eval.greedy=false"])
    assert (config.train.lr, config.run.name, config.eval.ks, config.eval.greedy) == (1e-4, "abc", [1, 2], False)


def test_a_missing_file_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"^config nowhere.toml: no such file; shipped ones are .*quickstart"):
        load_config("nowhere.toml")


def test_an_infinite_bound_survives_the_dump(tmp_path: Path) -> None:
    config = load_config(None, ["mask.high=inf"])
    dumped = tmp_path / "config.json"
    dumped.write_text(config.model_dump_json())
    assert load_config(dumped) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.max_backfill=0.06", r"max_backfill is 0.06, which is no whole group .* at least 1 / 16"),
        ("rollout.max_backfill=1e300", "max_backfill"),
        ("train.overlong_penalty=inf", "overlong_penalty"),
    ],
)
def test_a_number_that_could_mean_nothing_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])


def test_a_key_where_a_section_should_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("run = 5\n")
    with pytest.raises(ConfigError, match=r"run = 5: expected a section"):
        load_config(path, ["run.dir=b"])


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", "[run\n"), ("a.json", "{"), ("b.json", "[]"), ("b.toml", "a = ")]
)
def test_a_file_that_cannot_be_parsed_is_named(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=name):
        load_config(path)
