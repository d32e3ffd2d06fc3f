import pytest

from phasewatch.sources.target import Target, TargetError, folder_name, name_from_folder, parse_target, told_apart


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("http://gpu-1:8000/metrics", "gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("http://gpu-1:8000", "gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("http://gpu-1:8000/", "gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("gpu-1:8000", "gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("gpu-1", "gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("http://gpu-1", "gpu-1:80", "http://gpu-1:80/metrics"),
        ("https://GPU-1", "gpu-1:443", "https://gpu-1:443/metrics"),
        ("gpu-1:9000/engine/metrics/", "gpu-1:9000", "http://gpu-1:9000/engine/metrics/"),
        ("http://gpu-1:8000?name[]=x", "gpu-1:8000", "http://gpu-1:8000/metrics?name[]=x"),
        ("  10.0.0.5:8000\n", "10.0.0.5:8000", "http://10.0.0.5:8000/metrics"),
        ("vllm_0.ns.svc:8000", "vllm_0.ns.svc:8000", "http://vllm_0.ns.svc:8000/metrics"),
    ],
)
def test_a_url_needs_neither_scheme_nor_path(text: str, name: str, url: str) -> None:
    assert parse_target(text) == Target(name, url)


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("[2001:db8::10]:8000", "[2001:db8::10]:8000", "http://[2001:db8::10]:8000/metrics"),
        ("http://[2001:DB8:0::10]:8000/metrics", "[2001:db8::10]:8000", "http://[2001:db8::10]:8000/metrics"),
        ("http://[fe80::1%25eth0]:8000/metrics", "[fe80::1%eth0]:8000", "http://[fe80::1%25eth0]:8000/metrics"),
        ("[fe80::1%eth0]:8000", "[fe80::1%eth0]:8000", "http://[fe80::1%25eth0]:8000/metrics"),
        ("fe80::1%eth0", "[fe80::1%eth0]:8000", "http://[fe80::1%25eth0]:8000/metrics"),
        ("::1", "[::1]:8000", "http://[::1]:8000/metrics"),
        ("[::1]", "[::1]:8000", "http://[::1]:8000/metrics"),
        ("http://[::1]", "[::1]:80", "http://[::1]:80/metrics"),
        ("::", "[::]:8000", "http://[::]:8000/metrics"),
        ("2001:db8::10/metrics", "[2001:db8::10]:8000", "http://[2001:db8::10]:8000/metrics"),
        ("2001:db8:0:0:0:0:0:1", "[2001:db8::1]:8000", "http://[2001:db8::1]:8000/metrics"),
        ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]:8000", "http://[::ffff:10.0.0.1]:8000/metrics"),
        ("2001:db8::10:80ab", "[2001:db8::10:80ab]:8000", "http://[2001:db8::10:80ab]:8000/metrics"),
    ],
)
def test_d17_ipv6_addresses_are_read_in_every_form_that_has_one_meaning(text: str, name: str, url: str) -> None:
    assert parse_target(text) == Target(name, url)


@pytest.mark.parametrize("text", ["2001:db8::10", "[2001:db8::10]", "http://[2001:db8::10]"])
def test_d17_a_port_given_apart_belongs_to_the_bare_address(text: str) -> None:
    assert parse_target(text, port=8000) == Target("[2001:db8::10]:8000", "http://[2001:db8::10]:8000/metrics")
    assert parse_target("2001:db8::10:9000", port=8000).name == "[2001:db8::10:9000]:8000"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("2001:db8::10:8000", "[2001:db8::10]:8000"),
        ("http://2001:db8::10:8000/metrics", "[2001:db8::10]:8000"),
        ("::1:8000", "[::1]:8000"),
        ("fe80::1%eth0:8000", "[fe80::1%eth0]:8000"),
        ("::ffff:10.0.0.1:8000", "[::ffff:10.0.0.1]:8000"),
        ("2001:db8:0:0:0:0:0:1:8000", "[2001:db8:0:0:0:0:0:1]:8000"),
    ],
)
def test_d17_an_address_that_may_end_in_a_port_is_refused_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(TargetError, match="write") as caught:
        parse_target(text)
    assert f"write {advice} if 8000 is the port" in str(caught.value)
    assert parse_target(advice).name.endswith("]:8000")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (":8000", "localhost:8000"),
        ("8000", "localhost:8000"),
        ("http://", "missing host"),
        ("http:gpu-1", "missing //"),
        ("http:/gpu-1", "missing //"),
        ("ftp://gpu-1", "http:// or https://"),
        ("gpu 1:8000", "spaces"),
        ("gpu-1\\metrics", "backslashes"),
        ("gpu-1:abc", "port"),
        ("gpu-1:0", "port"),
        ("gpu-1:65536", "port"),
        ("gpu-1:", "port"),
        ("a:b:c", "IPv6"),
        ("[::1", "missing ']'"),
        ("[::1]8000", "missing ':'"),
        ("[gpu-1]:8000", "IPv6"),
        ("[fe80::1%25]:8000", "interface"),
        ("gpu..1:8000", "host"),
        ("10.0.0.300:8000", "IPv4"),
        ("gpu-1:8000#x", "'#'"),
        ("g" * 300, "too long"),
    ],
)
def test_what_is_no_target_is_one_line_that_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    message = str(caught.value)
    assert says in message
    assert message.startswith(f"target {text!r}: ")
    assert message.isprintable()


def test_two_different_ports_are_refused() -> None:
    with pytest.raises(TargetError, match="two ports, 8000 and 9000"):
        parse_target("gpu-1:8000", port=9000)


def test_credentials_are_used_and_never_shown() -> None:
    target = parse_target("http://me:s%40cret@gpu-1:8000/metrics")
    assert target.auth == ("me", "s@cret")
    assert target.name == "gpu-1:8000"
    assert "cret" not in repr(target)
    assert "cret" not in target.url


@pytest.mark.parametrize(
    "text",
    [
        "http://me:secret@gpu-1:abc",
        "http://me:1/secret@gpu-1:8000",
        "http://me:1?secret@gpu-1:8000",
        "http://me:1#secret@gpu-1:8000",
        "http://me:sec ret@gpu-1",
        "me:secret@2001:db8::10:8000",
        "ftp://me:secret@gpu-1",
        "http://:secret@gpu-1",
        "http://me:secret@",
    ],
)
def test_a_wrong_url_with_a_password_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("name", ["[fe80::1%eth0]:8000", "a/b", "..", ".hidden", "größe 7", "100%", "C:\\x", "demo"])
def test_a_name_survives_its_folder(name: str) -> None:
    folder = folder_name(name)
    assert "/" not in folder
    assert ":" not in folder
    assert not folder.startswith(".")
    assert name_from_folder(folder) == name


def test_a_chosen_name_labels_and_role_are_kept() -> None:
    target = parse_target("gpu-1", " decode 1 ", labels={"zone": "a"}, role="decode")
    assert target == Target("decode 1", "http://gpu-1:8000/metrics", {"zone": "a"}, "decode")
    with pytest.raises(TargetError, match="name"):
        parse_target("gpu-1", "two\nlines")


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["http://h:8080/upstream/a/metrics", "h:8080/upstream/b/metrics"],
         ["h:8080/upstream/a/metrics", "h:8080/upstream/b/metrics"]),
        (["h:8080", "h:8080/b?x=%25", "h:8081/b"], ["h:8080/metrics", "h:8080/b?x=%25", "h:8081"]),
        (["[fe80::1%25e0]:1/a", "[fe80::1%25e0]:1/b"], ["[fe80::1%e0]:1/a", "[fe80::1%e0]:1/b"]),
        (["h:1", "h:1/metrics"], ["h:1", "h:1"]),
    ],
)  # fmt: skip
def test_p28_pages_of_one_server_are_told_apart_by_their_paths(texts: list[str], names: list[str]) -> None:
    apart = told_apart([parse_target(text) for text in texts])
    assert [target.name for target in apart] == names
    assert len({folder_name(name) for name in names}) == len(set(names))


def test_p28_a_chosen_name_stays_and_a_path_too_long_for_a_folder_is_refused() -> None:
    chosen = [parse_target("h:1/a", "twin"), parse_target("h:1/b", "twin")]
    assert told_apart(chosen) == chosen
    with pytest.raises(TargetError, match="too long for a folder"):
        told_apart([parse_target("h:1/a"), parse_target(f"h:1/{'b' * 300}")])
