//! The connection between a relay and its database.

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
