import pytest

from reprise.config.loopback import takes_proxy


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3:8000", True),
        ("localhost:8000", True),
        ("LocalHost.", True),
        ("a.localhost", True),
        ("[::1]:8000", True),
        ("[::ffff:127.0.0.1]", True),
        ("0.0.0.0:8000", True),
        ("[::]:8000", True),
        ("192.168.1.5:8000", False),
        ("notlocalhost", False),
        ("127.0.0.1.example.org", False),
        ("[fe80::1]", False),
    ],
)
def test_this_machine_takes_no_proxy_and_no_proxy_reads_a_key(host, is_here):
    assert takes_proxy(f"http://{host}", has_key=False) is not is_here
    assert takes_proxy(f"https://{host}/v1", has_key=True) is not is_here
    assert not takes_proxy(f"http://{host}", has_key=True)


@pytest.mark.parametrize("url", ["http://[", "http://[::1"])
def test_what_is_no_address_takes_none(url):
    assert not takes_proxy(url, has_key=False)
