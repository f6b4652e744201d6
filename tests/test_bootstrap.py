"""What the environment says about the way to models."""

import pytest

from app import bootstrap


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://models.example/v1", "http://gate:3128"),
        ("http://models.example/v1", None),
        ("https://user:word@models.inside.example:8443/v1", None),
        ("nonsense", None),
    ],
)
def test_a_proxy_of_the_environment_leads_to_models(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("https_proxy", "http://gate:3128")
    monkeypatch.setenv("no_proxy", "inside.example")

    assert bootstrap._proxy_to(url) == proxy
