"""Secrets are known by their names and found by their values, in texts, data and exceptions."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, SecretStr

from vime.redact import MASK, Redactor, hidden_setting, is_secret_name, is_secret_variable, revealed

NUM_GPUS = 0

SECRET = 'sk-l0ng/and+odd"one'


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "API-KEY",
        "key",
        "hf_token",
        "token",
        "password",
        "db_passwd",
        "client_secret",
        "secret_value",
        "credentials",
        "judge_api_keys",
        "access_key",
        "wandb_key",
        "accessToken",
        "service_key",
    ],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "label_key",
        "input_key",
        "reward_key",
        "eval_metadata_key",
        "stop_token",
        "pad_token",
        "max_tokens",
        "tokens",
        "tokenizer",
        "monkey",
        "token_file",
        "password_path",
        "rollout_stop_token_ids",
        "key_name",
        "model",
        "keyword",
        "max_new_tokens",
        "token_variable",
        "token_header",
        "_",
    ],
)
def test_names_of_other_things(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "HF_TOKEN", "DB_PASSWORD_1", "AWS_SECRET_ACCESS_KEY", "MY_SECRET", "GH_PAT"])
def test_variables_that_hold_secrets(name):
    assert is_secret_variable(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "SSH_AUTH_SOCK", "KEYBOARD", "MONKEY", "HOME", "PWD", "OLDPWD"]
)
def test_variables_that_hold_none(name):
    assert not is_secret_variable(name)


def test_no_flag_of_vime_itself_is_taken_for_a_secret():
    from vime.config.run_config import RunConfig

    assert [name for name in RunConfig.model_fields if is_secret_name(name)] == []


def test_a_secret_is_found_wherever_it_stands_and_however_it_is_written():
    hides = Redactor.of({"SOME_TOKEN": SECRET, "SHORT_KEY": "1234567", "PATH": "/usr/local/bin"})
    assert hides.text(f"a {SECRET} b {SECRET}") == "a *** b ***"
    assert hides.text("key=sk-l0ng%2Fand%2Bodd%22one&x=1") == "key=***&x=1"
    assert hides.text('{"k": "sk-l0ng/and+odd\\"one"}') == '{"k": "***"}'
    assert hides.text("1234567 /usr/local/bin") == "1234567 /usr/local/bin"
    assert hides.text("https://me:pw@host/x and http://host") == "https://***@host/x and http://host"


def test_a_variable_that_holds_a_path_hides_no_path(tmp_path):
    (tmp_path / "id_key").write_text("x")
    text = f"the model of {tmp_path}"
    assert Redactor.of({"SSH_KEY": str(tmp_path), "OTHER_KEY": str(tmp_path / "id_key")}).text(text) == text
    assert Redactor.of({"SSH_KEY": "/not-there/abc"}).text("/not-there/abc") == "***"


def test_the_longest_secret_goes_first():
    hides = Redactor(["secret-one", "secret-one-and-more"])
    assert hides.text("secret-one-and-more, secret-one") == "***, ***"


def test_settings_are_masked_by_name_and_their_values_everywhere():
    plain = {"limit": 5, "use_password": True, "token": None, "label_key": "a"}
    settings = {"judge": {"api_key": "abcdefgh1", "note": "uses abcdefgh1", **plain}}
    hides = Redactor.of({}, settings)
    assert hides.data(settings) == {"judge": {"api_key": MASK, "note": "uses ***", **plain}}
    assert hides.data({"password": 12345678, "key": "x", "in": ["abcdefgh1", ("abcdefgh1", 1.5)]}) == {
        "password": MASK,
        "key": MASK,
        "in": [MASK, [MASK, 1.5]],
    }
    assert hides.data({"credentials": {"user": "u"}, "empty_key": ""}) == {"credentials": MASK, "empty_key": ""}


class _Settings(BaseModel):
    login: SecretStr
    model: str = "m"


def test_a_secret_type_is_a_secret_under_any_name():
    settings = _Settings(login=SecretStr("hush-hush-hush"))
    hides = Redactor.of({}, None, settings, [{"x": settings}])
    assert hides.text("hush-hush-hush m") == "*** m"
    assert revealed({"a": settings.model_dump()}) == {"a": {"login": "hush-hush-hush", "model": "m"}}


def test_a_variable_that_a_setting_names_holds_a_secret():
    environment = {"JUDGE_LOGIN": "from-the-env", "OTHER": "something else"}
    for settings in ({"judge": {"token_variable": "JUDGE_LOGIN"}}, [{"api_key_env_var": "JUDGE_LOGIN", "env": "OTHER"}]):
        assert Redactor.of(environment, settings).text("from-the-env, something else") == "***, something else"


def test_exceptions_lose_their_secrets_with_type_and_cause():
    hides = Redactor(["topsecret1"])

    def fail() -> None:
        try:
            raise KeyError("topsecret1")
        except KeyError as cause:
            error = ValueError("call with topsecret1 failed", 3)
            error.add_note("key topsecret1")
            raise error from cause

    with pytest.raises(ValueError, match=r"call with \*\*\* failed") as caught, hides.errors():
        fail()
    assert caught.value.args == ("call with *** failed", 3)
    assert caught.value.__notes__ == ["key ***"]
    assert caught.value.__cause__.args == ("***",)


def test_what_is_masked_is_found_in_a_configuration():
    assert hidden_setting({"plugin_settings": {"judge": {"a": 1, "api_key": "***"}}}) == "plugin_settings.judge.api_key"
    assert hidden_setting({"rm_url": "https://***@host"}) == "rm_url"
    assert hidden_setting({"a": ["x", {"b": "***"}]}) == "a.b"
    assert hidden_setting({"a": ["x", None, 3, "**"]}) is None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
