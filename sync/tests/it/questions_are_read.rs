//! Each question has one text, and nothing else is one.

use pleach_sync::{Ask, Head, PartAsk, Place, Refusal};

use crate::common::{commit, key, options, over_all, put, server};

#[test]
fn a_question_is_read_as_it_was_written_and_no_other_text_is_one() {
    let (root, to) = ([0xab; 32].into(), [7; 32].into());
    let part = PartAsk { root, namespace: 255, first: [0; 32], last: [0xff; 32], bytes: 7 };
    let hex = "ab".repeat(32);
    let changes = Ask::Changes { from: root, to };
    for ask in [Ask::Head, Ask::Roots(root), Ask::Place(root), Ask::Part(part), changes] {
        let text = ask.to_string();
        assert_eq!(text.parse(), Ok(ask));
        for at in 0..text.len() {
            assert_eq!(text[..at].parse::<Ask>(), Err(Refusal::Malformed), "{}", &text[..at]);
        }
        for wrong in [
            format!("/{text}"),
            format!("{text}/"),
            format!("{text} "),
            format!("{text}/{hex}"),
            text.to_uppercase(),
        ] {
            assert_eq!(wrong.parse::<Ask>(), Err(Refusal::Malformed), "{wrong}");
        }
    }
    for count in [1, 2, 64] {
        let ask = Ask::Keys { root, namespace: 9, keys: vec![[3; 32]; count] };
        assert_eq!(ask.to_string().parse(), Ok(ask));
    }
    for wrong in [
        format!("keys/{hex}/9"),
        format!("keys/{hex}/9/"),
        format!("keys/{hex}/9/{hex}/"),
        format!("keys/{hex}/9{}", format!("/{hex}").repeat(65)),
        format!("part/{hex}/256/{hex}/{hex}/1"),
        format!("part/{hex}/-1/{hex}/{hex}/1"),
        format!("part/{hex}/01/{hex}/{hex}/1"),
        format!("part/{hex}/1/{hex}/{hex}/4294967296"),
        format!("part/{hex}/1/{hex}/{hex}/+1"),
        format!("roots/{}", "é".repeat(32)),
        format!("roots/0x{}", "a".repeat(62)),
        String::new(),
    ] {
        assert_eq!(wrong.parse::<Ask>(), Err(Refusal::Malformed), "{wrong}");
    }
    assert_eq!([0, 23, 25].map(|bytes| Place::decode(&vec![0; bytes])), [None; 3]);
    assert_eq!([0, 55, 57].map(|bytes| Head::decode(&vec![0; bytes])), [None; 3]);
}

#[test]
fn a_server_refuses_what_it_cannot_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = pleach::Db::open(options(folder.path())).expect("opened");
    db.add_plain_namespace(4).expect("added");
    commit(&db, vec![put(0, key(1), vec![1])]);
    let (server, root) = (server(&db), over_all(&db));
    let refused = |namespace, first, last| {
        let (bytes, mut answer) = (0, vec![1, 2]);
        let ask = Ask::Part(PartAsk { root, namespace, first, last, bytes });
        let refused = server.answer(&ask, &mut answer).expect_err("refused");
        assert!(answer.is_empty());
        refused
    };
    assert_eq!(refused(0, [2; 32], [1; 32]), Refusal::Malformed);
    assert_eq!(refused(7, [1; 32], [1; 32]), Refusal::Unknown);
    assert_eq!(refused(4, [1; 32], [1; 32]), Refusal::Unknown);
}
