use super::*;

fn record(name: &str) -> OfflineRecord {
    let id: RecordId = format!("detector:{name}:1732147200000").parse().unwrap();
    let (at, labels) = (id.last_seen, Labels::from([("site".to_owned(), r#"a",{"id":"b"#.to_owned())]));
    OfflineRecord { labels, ..OfflineRecord::open(id.unit, at, at, at) }
}

#[test]
fn an_unreadable_member_leaves_the_others_readable() {
    let group = Group { key: "g".into(), labels: Labels::from([("kind".into(), "detector".into())]) };
    let [a, b, c] = ["a", "b", "c"].map(|name| to_json(&record(name)).unwrap());
    let text = |group: &str, offline: &str| {
        format!(
            r#"{{"group":{group},"sealed_at":"2024-11-21T00:00:00Z","offline":[{offline}],"online":[{c}],"blind":[]}}"#
        )
    };
    let group_json = to_json(&group).unwrap();
    for garbage in ["{}", "[]", "7", "null", r#""text""#, r#"{"id":"x"}"#, r#"{"id":{"id":[]}}"#] {
        for offline in
            [format!("{a},{garbage},{b}"), format!("{garbage},{a},{b}"), format!("{a},{b},{garbage}")]
        {
            let read = Notification::read("g", text(&group_json, &offline).as_bytes());
            assert!(read.error.is_some(), "{garbage:?} counts as read");
            let Notification { offline, online, group: shared, .. } = read.notification.unwrap();
            assert_eq!(offline, [record("a"), record("b")], "{garbage:?}");
            assert_eq!((online, &shared), (vec![record("c")], &group), "{garbage:?}");
        }
    }
    for garbage in ["7", "{}", "null"] {
        let read = Notification::read("g", text(garbage, &format!("{a},{b}")).as_bytes());
        let Notification { group, offline, online, .. } = read.notification.unwrap();
        assert_eq!((group.key.as_str(), offline.len(), online.len()), ("g", 2, 1));
    }
    let no_list = text(&group_json, "").replace(r#""offline":[]"#, r#""offline":7"#);
    let read = Notification::read("g", no_list.as_bytes());
    assert_eq!(read.notification.unwrap().online, [record("c")]);
    let whole = Notification::read("g", text(&group_json, &a).as_bytes());
    assert!(whole.error.is_none() && whole.notification.is_some());
    let cut = &text(&group_json, &a)[..200];
    for garbage in [cut, "garbage{", "", "[1", "{}", r#"{"group":{},"offline":[],"online":[],"blind":[]}"#] {
        let read = Notification::read("g", garbage.as_bytes());
        assert!(read.notification.is_none() && read.error.is_some(), "{garbage:?}");
    }
}
