"""Tenants and the tokens that are bound to them."""

from __future__ import annotations

import hashlib

import pytest

from flowengine.errors import InvalidSetting, TenantRefused
from flowengine.settings import Settings
from flowengine.tenants import TenantTokens, visible_tenant
from flowengine.web.access import presented_token

SHOP, PRESS = "shop-0123456789abcdef", "press-0123456789abcdef="


def test_an_app_without_a_tenant_sees_the_tenant_that_it_asks_for() -> None:
    assert visible_tenant("", None) is None
    assert visible_tenant("", "") == ""
    assert visible_tenant("", "shop") == "shop"


def test_a_bound_app_sees_its_own_tenant_and_refuses_others() -> None:
    assert visible_tenant("shop", None) == "shop"
    assert visible_tenant("shop", "shop") == "shop"
    for other in ("", "press"):
        with pytest.raises(TenantRefused, match="is bound to tenant 'shop'"):
            visible_tenant("shop", other)


def test_a_token_has_the_tenant_of_its_setting() -> None:
    hashed = hashlib.sha256(PRESS.encode()).hexdigest()
    for setting in (f"shop={SHOP}, press={PRESS}", f"press=sha256:{hashed},shop={SHOP},"):
        tokens = TenantTokens(setting)
        assert tokens
        assert tokens.tenant_of(SHOP) == "shop"
        assert tokens.tenant_of(PRESS) == "press"
        for unknown in ("", "shop", SHOP[:-1], SHOP + "0", hashed, f"sha256:{hashed}", "\udc80"):
            assert tokens.tenant_of(unknown) is None


def test_a_tenant_may_have_two_tokens() -> None:
    tokens = TenantTokens(f"shop={SHOP},shop={PRESS}")
    assert tokens.tenant_of(SHOP) == tokens.tenant_of(PRESS) == "shop"


def test_no_token_is_known_without_the_setting() -> None:
    assert not TenantTokens("")
    assert TenantTokens("").tenant_of("") is None


@pytest.mark.parametrize(
    "setting",
    [
        "shop",
        f"={SHOP}",
        "shop=short",
        "shop=sha256:12",
        f"shop={SHOP},press={SHOP}",
        f"{'s' * 65}={SHOP}",
    ],
)
def test_an_invalid_list_of_tokens_is_refused_without_showing_it(setting: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Settings.from_environment({"FLOWENGINE_TENANT_TOKENS": setting})
    assert "FLOWENGINE_TENANT_TOKENS='***' is not a list of tenant=token" in str(refused.value)
    for secret in (SHOP, "short", "sss"):
        assert secret not in str(refused.value) + repr(refused.value)


def test_settings_do_not_show_their_tokens() -> None:
    settings = Settings.from_environment({"FLOWENGINE_TENANT_TOKENS": f"shop={SHOP}"})
    assert settings.tenant_tokens == f"shop={SHOP}"
    assert SHOP not in repr(settings)


@pytest.mark.parametrize("tenant", ["t" * 65, "a\nb", "\udc80"])
def test_an_invalid_tenant_of_an_app_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidSetting, match="FLOWENGINE_TENANT="):
        Settings.from_environment({"FLOWENGINE_TENANT": tenant})


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer abc", ("bearer", "abc")),
        ("bearer  abc ", ("bearer", "abc")),
        ("Basic dXNlcjphOmI=", ("basic", "a:b")),
        ("Basic dXNlcg==", ("basic", "")),
        ("Basic no base64", ("basic", "")),
        ("Basic /w==", ("basic", "")),
        ("Digest abc", ("digest", "")),
        ("", ("", "")),
    ],
)
def test_a_token_is_read_from_the_header(header: str, found: tuple[str, str]) -> None:
    assert presented_token(header) == found
