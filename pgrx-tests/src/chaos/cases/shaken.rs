//! The connection between a relay and its database.

use std::time::Duration;

use crate::chaos::Stage;
use crate::chaos::scene::Sender;
use crate::tcp_proxy::TcpProxy;

pub fn relay_connection(stage: &mut Stage) {
    const TIMES: usize = 4;
    let mut scene = stage.scene(Sender::Relay);
    let proxy = TcpProxy::start(&scene.cluster);
    scene.relay = None;
    scene.start_relay_at(proxy.port());
    scene.begin_load();
    for _ in 0..TIMES {
        let more = 1 + scene.random.below(scene.size() / TIMES);
        scene.wait_for_commits(more);
        scene.disturb();
        scene.lose_sender();
        match scene.random.below(3) {
            0 => proxy.cut(),
            1 => proxy.lose_next_answer(),
            _ => {
                proxy.swallow();
                proxy.close_at_server();
                proxy.stop_swallowing();
                proxy.cut();
            }
        }
        scene.mend();
        scene.wait_for_requests(scene.size() / TIMES);
    }
    stage.reconcile(scene);
}

/// Each question takes 80 ms on its way there and back.
pub fn slow_link(stage: &mut Stage) {
    let mut scene = stage.scene(Sender::Relay);
    let proxy = TcpProxy::start(&scene.cluster);
    scene.relay = None;
    scene.start_relay_at(proxy.port());
    scene.begin_load();
    scene.wait_for_requests(10);
    scene.disturb();
    proxy.delay(Duration::from_millis(40));
    // An event of an ordering key takes two questions, so that more are emitted than can be sent.
    scene.wait_for_requests(scene.size() / 2);
    proxy.delay(Duration::ZERO);
    scene.mend();
    scene.wait_for_requests(scene.size() / 2);
    stage.reconcile(scene);
}
