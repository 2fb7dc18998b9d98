//! The description of the API agrees with its routes and its answers.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::roles::{MinimumSince, ROUTES};
use super::world::Fleet;

const DOCUMENT: &str = include_str!("../../../src/http/openapi.json");

/// The document, changed so that objects may have only the fields that it names.
fn document() -> &'static Value {
    fn close(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                if fields.get("properties").is_some_and(Value::is_object) {
                    fields.entry("additionalProperties").or_insert(json!(false));
                }
                fields.values_mut().for_each(close);
            }
            Value::Array(all) => all.iter_mut().for_each(close),
            _ => {}
        }
    }
    static CLOSED: OnceLock<Value> = OnceLock::new();
    CLOSED.get_or_init(|| {
        let mut document = serde_json::from_str(DOCUMENT).unwrap();
        close(&mut document);
        document
    })
}

/// The schema of the answer to GET of this path, if the path belongs to the API.
fn answer_of(path: &str) -> Option<&'static Value> {
    let path: Vec<&str> = path.split('?').next().unwrap().split('/').collect();
    let is_of = |template: &str| {
        let template: Vec<&str> = template.split('/').collect();
        let same = |(one, other): (&&str, &&str)| one == other || one.starts_with('{');
        template.len() == path.len() && template.iter().zip(&path).all(same)
    };
    let paths = document()["paths"].as_object().unwrap();
    // A path without parameters goes before one with them.
    let found = paths.iter().filter(|(template, _)| is_of(template));
    let (_, found) = found.min_by_key(|(template, _)| template.matches('{').count())?;
    Some(&found["get"]["responses"]["200"]["content"]["application/json"]["schema"])
}

/// Panics if an answer to GET does not match the document.
pub(super) fn assert_described(path: &str, answer: &Value) {
    let Some(schema) = answer_of(path) else { return };
    let whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "components": document()["components"],
        "allOf": [schema],
    });
    let validator: Validator = jsonschema::draft202012::new(&whole).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(answer).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{path} is not as openapi.json says: {errors:#?}");
}

#[tokio::test]
async fn the_document_has_every_route_with_its_role() {
    let fleet = Fleet::start().await;
    let shown: Value = fleet.json("/api/v1/openapi.json").await;
    assert_eq!(shown, serde_json::from_str::<Value>(DOCUMENT).unwrap());
    let routes = ROUTES.iter().filter(|(_, path, _)| path.starts_with("/api/v1/"));
    let routes: BTreeSet<String> = routes
        .map(|(method, path, least)| {
            let role = match least {
                MinimumSince::Anyone => "nobody",
                MinimumSince::Viewer => "viewer",
                MinimumSince::Device => "device or operator",
                MinimumSince::Operator => "operator",
                MinimumSince::Admin => "admin",
            };
            format!("{method} {path}: Needs the role {role}.")
        })
        .collect();
    let mut described = BTreeSet::new();
    for (path, methods) in shown["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if method != "parameters" {
                let text = operation["description"].as_str().unwrap();
                described.insert(format!("{method} {path}: {text}"));
            }
        }
    }
    assert_eq!(described, routes);
}

#[test]
#[should_panic(expected = "is not as openapi.json says")]
fn an_answer_with_a_field_that_is_not_described_is_found() {
    assert_described("/api/v1/audit?limit=1", &json!({ "audit": [], "more": 1 }));
}

/// Clients that are generated from the document group operations by tags, and name them by their ids.
#[test]
fn every_operation_has_a_tag_an_id_of_its_own_and_words() {
    let document = document();
    let names = |of: &Value| {
        let all = of.as_array().into_iter().flatten().map(|tag| tag.as_str().unwrap_or_default().to_owned());
        all.collect::<BTreeSet<String>>()
    };
    let tags = document["tags"].as_array().unwrap();
    assert!(tags.iter().all(|tag| tag["description"].is_string()), "{tags:?}");
    let known: BTreeSet<String> = tags.iter().map(|tag| tag["name"].as_str().unwrap().to_owned()).collect();
    let (mut used, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in ["get", "put", "post", "delete", "patch"] {
            let Some(operation) = operations.get(method) else { continue };
            let at = format!("{method} {path}");
            let own = names(&operation["tags"]);
            assert_eq!(own.len(), 1, "{at}");
            assert!(own.is_subset(&known), "{at}: {own:?}");
            used.extend(own);
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{at}");
            for words in ["summary", "description"] {
                assert!(operation[words].as_str().is_some_and(|text| !text.is_empty()), "{at}: {words}");
            }
            assert!(operation["responses"]["default"].is_object(), "{at}: the form of errors");
        }
    }
    assert_eq!(used, known, "a tag without operations");
    let text = DOCUMENT.to_owned();
    for schema in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(text.contains(&format!("schemas/{schema}\"")), "{schema} is not used");
    }
}
