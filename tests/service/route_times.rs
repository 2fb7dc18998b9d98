//! `rollcall route test` says whether a message at a moment would be held, and until when.

use super::cli::{rollcall, text};

const CONFIG: &str = r#"
    receiver = [{ name = "hook", type = "webhook", url = "http://127.0.0.1:1" }]
    [[kind]]
    name = "detector"
    timeout = "2h"
    grace = "5m"
    [[kind]]
    name = "camera"
    topics = ["cameras/{unit}"]
    timeout = "1h"
    [route]
    receivers = ["hook"]
    [[route.routes]]
    matchers = ["site=north"]
    mute_times = ["night"]
    [[route.routes]]
    matchers = ["site=south"]
    active_times = ["office"]
    [[route.routes]]
    matchers = ["site=west"]
    mute_times = ["always"]
    [[time]]
    name = "night"
    times = [{ start_time = "22:00", end_time = "24:00" }, { start_time = "00:00", end_time = "06:00" }]
    zone = "Europe/Berlin"
    [[time]]
    name = "office"
    times = [{ start_time = "08:00", end_time = "18:00" }]
    weekdays = ["monday:friday"]
    [[time]]
    name = "always"
    [[inhibit]]
    source_matchers = ["kind=camera"]
    target_matchers = ["kind=detector"]
    equal = ["site"]
"#;

#[test]
fn a_route_says_whether_it_holds_a_message_of_a_moment_and_until_when() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rollcall.toml"), CONFIG).unwrap();
    let run = |arguments: &[&str]| rollcall(dir.path(), &[&["route", "test"], arguments].concat(), &[]);
    // Berlin is two hours ahead in July, and one in January. The 25th is a Saturday.
    let cases = [
        (
            "north",
            "2026-07-22T01:00:00Z",
            "  muted at 2026-07-22T01:00:00.000Z, within night, until 2026-07-22T04:00:00.000Z\n",
        ),
        ("north", "2026-01-22T22:30:00+02:00", "  not muted at 2026-01-22T20:30:00.000Z\n"),
        (
            "north",
            "2026-01-22T21:30:00Z",
            "  muted at 2026-01-22T21:30:00.000Z, within night, until 2026-01-23T05:00:00.000Z\n",
        ),
        ("north", "2026-07-22T04:00:00Z", "  not muted at 2026-07-22T04:00:00.000Z\n"),
        (
            "south",
            "2026-07-25T12:00:00Z",
            "  muted at 2026-07-25T12:00:00.000Z, outside of its active times, until 2026-07-27T08:00:00.000Z\n",
        ),
        ("south", "2026-07-24T12:00:00Z", "  not muted at 2026-07-24T12:00:00.000Z\n"),
        ("west", "2026-07-24T12:00:00Z", "  muted at 2026-07-24T12:00:00.000Z, within always, until after "),
    ];
    for (site, at, expected) in cases {
        let output = run(&["detector/pump-7", "--label", &format!("site={site}"), "--at", at]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        assert!(shown.contains(expected), "{site} {at}: {shown}\n--- expected\n{expected}");
        let held = format!(
            "inhibit[0] holds it while a unit with kind=\"camera\" and site=\"{site}\" is offline\n  \
             and then for 2h 5m, the silence that it is allowed; the configuration does not say which units are offline\n"
        );
        assert!(shown.contains(&held), "{shown}\n--- expected\n{held}");
    }
    // Without `--at` the moment is now; a route without times is never muted.
    let north = text(&run(&["camera/1", "--label", "site=north"]).stdout);
    assert!(
        north.contains("  not muted now\n") || north.contains("  muted now, within night, until "),
        "{north}"
    );
    let east = text(&run(&["camera/1", "--label", "site=east"]).stdout);
    assert!(!east.contains("muted") && !east.contains("and then"), "{east}");
    for wrong in ["tomorrow", "2026-07-22T01:00:00"] {
        assert_eq!(run(&["camera/1", "--at", wrong]).status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn a_route_that_asks_for_unusual_silences_is_found_for_them_alone() {
    let dir = tempfile::tempdir().unwrap();
    let asked = |matchers: &str, arguments: &[&str]| {
        let config = CONFIG.replace("site=north", matchers);
        std::fs::write(dir.path().join("rollcall.toml"), config).unwrap();
        let output = rollcall(dir.path(), &[&["route", "test", "detector/pump-7"], arguments].concat(), &[]);
        (output.status.code(), text(&output.stdout))
    };
    let (code, shown) = asked("unusual=true", &["--unusual"]);
    assert!(
        shown.contains("it takes route.routes[0]: hook") && shown.contains("/unusual,kind=detector\n"),
        "{shown}"
    );
    assert_eq!(code, Some(0));
    let (_, shown) = asked("unusual=true", &[]);
    assert!(!shown.contains("it takes route.routes[0]") && shown.contains("it takes route: hook"), "{shown}");
    let (_, shown) = asked("site=north", &["--unusual"]);
    assert!(shown.contains("it takes no route: none has the matcher unusual=\"true\""), "{shown}");
    assert_eq!(asked("site=north", &["--unusual", "--never-seen"]).0, Some(2));
}
