//! The findings about kinds whose units get only a part of what their topics capture as id: two devices may share one.

use super::Finding;
use crate::config::Config;
use crate::intake::Template;

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut rules: Vec<_> = config.rules.values().collect();
    rules.sort_by_key(|rules| &rules.kind);
    for rules in rules {
        let (kind, name) = (&rules.kind, &rules.name);
        let mut labels: Vec<String> = Vec::new();
        let heard = config.intake.iter().flat_map(|one| &one.topics);
        let heard = heard.filter_map(|(text, of)| Template::parse(text, of.clone()).ok());
        let announced = config.intake.iter().flat_map(|one| &one.presence);
        let announced = announced.filter(|(_, presence)| presence.format.has_named_topics());
        let announced = announced.flat_map(|(of, presence)| {
            presence.topics.iter().filter_map(|text| Template::of_announcements(text, of.clone()).ok())
        });
        for template in heard.chain(announced).filter(|template| template.is_of(kind)) {
            for (label, _) in template.labels_beside(name) {
                if !labels.iter().any(|known| *known == *label) {
                    labels.push(label.into());
                }
            }
        }
        let Some(label) = labels.first() else { continue };
        let braced = labels.iter().map(|label| format!("{{{label}}}")).collect::<Vec<_>>().join(", ");
        let text = format!(
            "kind {kind} names its units {name}, and {braced} of its topics become labels: two devices with the same \
             {name} would be one unit, and the silence of one would not be noticed"
        );
        findings.push(match config.named.contains(kind) {
            true => Finding::ok("names", format!("{text}; unit_at_two_places in /readyz warns of that")),
            false => Finding::warn(
                "names",
                format!(
                    "{text}; write unit = \"{{{label}}}.{name}\", or unit = \"{name}\" if no two devices have the \
                     same"
                ),
            ),
        });
    }
    findings
}
