"""What the environment says about the way to models, and whom to believe there."""

from pathlib import Path

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


def test_the_usual_authorities_are_trusted_unless_others_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    usual = bootstrap._trusted()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    named = bootstrap._trusted()

    assert usual.cert_store_stats()["x509_ca"] > 0
    assert named.cert_store_stats()["x509_ca"] == 0
