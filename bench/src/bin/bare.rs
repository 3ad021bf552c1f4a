//! The bare client: hyper on tokio's current-thread runtime, the same signed bodies, and nothing that is stored. A
//! sender on one thread can reach this rate at most. It takes the same order as the peers: peers/common.js.

use std::cell::Cell;
use std::io::{self, BufRead};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, process, thread};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use sha2::Sha256;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

#[path = "../open_files.rs"]
mod open_files;

struct Order {
    urls: Vec<Uri>,
    key: Vec<u8>,
    events: u64,
    concurrency: u64,
    body_bytes: usize,
}

fn main() {
    open_files::raise_limit();
    let order = Rc::new(order());
    println!("ready {}", process::id());
    let (go, gone) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    let listening = thread::spawn(move || listen(go, stop));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let settled = Rc::new(Cell::new(0));
    LocalSet::new().block_on(&runtime, async {
        let _ = gone.await;
        tokio::select! {
            () = send_all(order, settled.clone()) => {}
            _ = stopped => {}
        }
    });
    println!("done {}", settled.get());
    listening.join().expect("the listener is well");
}

fn order() -> Order {
    let argument = env::args().nth(1).expect("the order is an argument");
    let order: Value = serde_json::from_str(&argument).expect("the order is JSON");
    let number = |name: &str| order[name].as_u64().expect("it is a number");
    let text = |value: &Value| value.as_str().expect("it is a text").to_owned();
    Order {
        urls: (order["urls"].as_array().expect("it is a list").iter())
            .map(|url| text(url).parse().expect("it is a URL"))
            .collect(),
        key: BASE64
            .decode(text(&order["secret"]))
            .expect("it is in Base64"),
        events: number("events"),
        concurrency: number("concurrency"),
        body_bytes: number("body_bytes") as usize,
    }
}

fn listen(go: oneshot::Sender<()>, stop: oneshot::Sender<()>) {
    let (mut go, mut stop) = (Some(go), Some(stop));
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let word = match line.as_str() {
            "go" => go.take(),
            _ => stop.take(),
        };
        word.map(|word| word.send(()));
    }
}

async fn send_all(order: Rc<Order>, settled: Rc<Cell<u64>>) {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let next = Rc::new(Cell::new(0));
    let senders: Vec<_> = (0..order.concurrency)
        .map(|_| {
            let (order, client) = (order.clone(), client.clone());
            let (next, settled) = (next.clone(), settled.clone());
            tokio::task::spawn_local(async move {
                while next.get() < order.events {
                    let number = next.replace(next.get() + 1);
                    let response = client.request(order.request(number)).await;
                    let response = response.expect("the sink answers");
                    assert!(response.status().is_success());
                    (response.into_body().collect().await).expect("the answer ends");
                    settled.set(settled.get() + 1);
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.expect("the sender is well");
    }
}

impl Order {
    fn request(&self, number: u64) -> Request<Full<Bytes>> {
        let mut body = format!("{{\"number\":{number},\"filler\":\"");
        body.extend(std::iter::repeat_n(
            'x',
            self.body_bytes.saturating_sub(body.len() + 2),
        ));
        body.push_str("\"}");
        let id = uuid::Uuid::from_u128(u128::from(number)).to_string();
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH);
        let timestamp = timestamp.expect("it is later than 1970").as_secs();
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("any key will do");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body.as_bytes());
        let signature = BASE64.encode(mac.finalize().into_bytes());
        Request::post(self.urls[number as usize % self.urls.len()].clone())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", format!("v1,{signature}"))
            .body(Full::new(Bytes::from(body)))
            .expect("it is a valid request")
    }
}
