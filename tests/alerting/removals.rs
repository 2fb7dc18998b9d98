//! Many units that an operator removes at once.

use rollcall::alerting::Format;
use rollcall::simulate::webhook_sink::Answer;

use super::world::{self, WAIT, World, listed, named};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_removed_units_beside_a_slow_receiver_do_not_hold_up_a_silence() {
    let (alerts, chat) = (world::hook().await, world::hook().await);
    let config =
        WebhookConfig { url: alerts.url(), format: Format::Alertmanager, ..WebhookConfig::default() };
    let receivers = vec![named("chat", webhook_to(chat.url(), None)), receiver("alerts", webhook_of(config))];
    let mut world = World::new("kind", receivers).await;
    let names: Vec<String> = (0..1000).map(|number| format!("n{number}")).collect();
    world.notify_loss(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    chat.wait_for(1, MAX_WAIT).await.unwrap();
    alerts.wait_for(1, MAX_WAIT).await.unwrap();
    world.delivered("chat").await;
    world.delivered("alerts").await;
    world.stop().await;
    for name in &names {
        assert!(world.roll.retire(&world::unit(name), world.clock.now()).await.unwrap());
    }
    alerts.answer_with(vec![Answer::Hang; 100]);
    let before = world.commands("write_cells");
    world.start();
    world.hear(&["b"]).await;
    world.lose(&["b"]).await;
    world.joined().await;
    world.advance(6 * WAIT);
    assert_eq!(listed(&chat.wait_for(2, MAX_WAIT).await.unwrap()[1], "offline"), ["b"]);
    let asked = world.commands("write_cells") - before;
    assert!(asked < 100, "the dispatcher asked the engine {asked} times");
    assert!(alerts.received().len() < 100, "the slow receiver has got few");
    alerts.answer_with([]);
    alerts.release();
    world.stop().await;
}
