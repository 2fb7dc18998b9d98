//! From a device to Prometheus: metrics and states of units, found by service discovery.

use std::time::Duration;

use rollcall::simulate::servers::free_port;
use rumqttc::{AsyncClient, MqttOptions, PublishOptions, QoS};
use tokio::task::JoinHandle;

use crate::support::fleet::{Servers, Service};
use crate::support::prometheus::Prometheus;

const MAX_WAIT: Duration = Duration::from_secs(120);
/// How many units there are.
const UNITS: usize = 40;
/// The names of the two instances.
const INSTANCES: [&str; 2] = ["one", "two"];

struct World {
    prometheus: Prometheus,
    instances: Vec<Service>,
    // The last field, so that Prometheus has ended when the directory is removed.
    servers: Servers,
}

impl World {
    /// Two instances, and Prometheus, which knows the address of one of them.
    async fn start() -> World {
        let servers = Servers::start();
        let (mut instances, mut ports) = (Vec::new(), Vec::new());
        for name in INSTANCES {
            ports.push(free_port().unwrap());
            let listen = format!("127.0.0.1:{}", ports.last().unwrap());
            let text = format!(
                r#"
                instance.name = "{name}"
                engine.url = "redis://127.0.0.1:{}/0"
                mqtt = {{ url = "mqtt://127.0.0.1:{}", client_id = "{name}", share = "all" }}
                http = {{ listen = "{listen}", count_by_labels = ["site"] }}
                [[kind]]
                name = "pump"
                topics = ["pumps/{{site}}/{{unit}}"]
                [[kind.metric]]
                name = "pump_pressure_pascals"
                pointer = "/pressure"
                type = "gauge"
                help = "Pressure behind the pump."
                unit = "pascals"
                [[kind.metric]]
                name = "pump_starts_total"
                pointer = "/motor/starts"
                type = "counter"
                help = "Starts of the motor."
                [[kind.metric]]
                name = "pump_firmware_info"
                pointer = "/motor/firmware"
                type = "info"
                help = "Firmware of the motor."
                label = "version"
                "#,
                servers.redis.port(),
                servers.broker.port(),
            );
            instances.push(Service::start(&text));
        }
        let dir = servers.dir.path().join("prometheus");
        let prometheus = Prometheus::start(&dir, &discovering(ports[0]));
        World { prometheus, instances, servers }
    }

    fn device(&self) -> (AsyncClient, JoinHandle<()>) {
        let options = MqttOptions::new("device", ("127.0.0.1", self.servers.broker.port()));
        let (client, mut events) = AsyncClient::builder(options).capacity(100).build();
        (client, tokio::spawn(async move { while events.poll().await.is_ok() {} }))
    }

    /// Repeats a query until its only value is this one.
    async fn until(&self, query: &str, value: &str) {
        let mut last = Vec::new();
        let asked = async {
            loop {
                last = self.prometheus.query(query).await;
                if matches!(&last[..], [one] if one["value"][1] == value) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(MAX_WAIT, asked).await.is_err() {
            panic!("{query} is not {value} but {last:?}; see {}", self.servers.dir.path().display());
        }
    }
}

/// The configuration of service discovery.
fn discovering(one: u16) -> String {
    let targets = format!("http://127.0.0.1:{one}/api/v1/prometheus/targets");
    format!(
        "global: {{ scrape_interval: 2s, scrape_timeout: 2s }}\n\
         scrape_configs:\n\
         - {{ job_name: rollcall, http_sd_configs: [{{ url: '{targets}', refresh_interval: 1s }}] }}\n\
         - {{ job_name: rollcall-units, http_sd_configs: [{{ url: '{targets}?shards=4', refresh_interval: 1s }}] }}\n",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_finds_every_instance_and_shard_and_sees_each_unit_once() {
    let mut world = World::start().await;
    let (device, _task) = world.device();
    let says = async |unit: usize, payload: String| {
        let topic = format!("pumps/site-{}/{unit}", unit % 2);
        device.publish(topic, payload, PublishOptions::new(QoS::AtLeastOnce)).await.unwrap();
    };
    world.until("count(up{job=\"rollcall\"} == 1)", "2").await;
    world.until("count(up{job=\"rollcall-units\"} == 1)", "8").await;
    for unit in 0..UNITS {
        let motor = format!("{{\"starts\":{unit},\"firmware\":\"v{}\"}}", unit % 3);
        says(unit, format!("{{\"pressure\":{},\"motor\":{motor}}}", 1000 + unit)).await;
    }
    let all = UNITS.to_string();
    // Each unit has a single series, whichever instance heard it and whichever shows it.
    for family in ["rollcall_unit_up", "pump_pressure_pascals", "pump_starts_total", "pump_firmware_info"] {
        world.until(&format!("count({family})"), &all).await;
    }
    world.until("count(count by (shard) (rollcall_unit_up))", "4").await;
    world.until("count(count by (rollcall_instance) (rollcall_unit_up))", "2").await;
    world.until("sum(rollcall_units)", &all).await;
    world.until("sum(rollcall_units_by_label{value=\"site-1\",state=\"online\"})", "20").await;
    world.until("sum(pump_pressure_pascals)", &(1000 * UNITS + UNITS * (UNITS - 1) / 2).to_string()).await;
    world.until("count(pump_firmware_info{version=\"v2\"})", "13").await;

    says(7, "{\"pressure\":5,\"motor\":{\"starts\":\"many\"}}".to_owned()).await;
    world.until("pump_pressure_pascals{unit=\"7\"}", "5").await;
    world.until("sum(rollcall_payload_issues_total{reason=\"bad_value\"})", "1").await;
    world.until("pump_starts_total{unit=\"7\"}", "7").await;
    world.until("sum(rollcall_unit_metrics_truncated) + min(rollcall_unit_values_read)", "1").await;

    // The other instance takes over the series of the ended instance, and no series is doubled.
    world.instances.pop().unwrap().end().await;
    world.until("count(count by (rollcall_instance) (rollcall_unit_up))", "1").await;
    world.until("count(up{job=\"rollcall-units\"})", "4").await;
    for family in ["rollcall_unit_up", "pump_pressure_pascals"] {
        world.until(&format!("count({family})"), &all).await;
    }
    world.instances.pop().unwrap().end().await;
}
