//! A real HTTP server on loopback that records every request and answers as told.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Instant, SystemTime};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use crate::answering::Answering;
use crate::{port, wait};

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// With the query, as it was sent.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub arrived: Instant,
    pub arrived_at: SystemTime,
}

impl Request {
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        let value = value.unwrap_or_else(|| panic!("no header {name} in {:?}", self.headers));
        value.to_str().expect("our headers are ASCII")
    }

    /// The id that `webhook_emit()` returned for it.
    #[track_caller]
    pub fn event_id(&self) -> Uuid {
        let id = self.header("webhook-id");
        Uuid::parse_str(id).unwrap_or_else(|_| panic!("webhook-id is not a uuid: {id}"))
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {:?}", self.body))
    }
}

/// The events of these requests, in their order.
pub fn ids(requests: &[Request]) -> Vec<Uuid> {
    requests.iter().map(Request::event_id).collect()
}

#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Answer {
    pub fn status(status: u16) -> Answer {
        Answer {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Answer {
        self.body = body.into();
        self
    }

    fn into_response(self) -> hyper::Response<Full<Bytes>> {
        let mut response = hyper::Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response
            .body(Full::new(self.body))
            .expect("tests answer with valid headers")
    }
}

type Responder = Arc<dyn Fn(&Request, usize) -> Answer + Send + Sync>;

struct Shared {
    state: Mutex<State>,
    /// Each path with the number of the last request that is answered all the same.
    held_paths: watch::Sender<HashMap<String, usize>>,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    requests_by_path: HashMap<String, usize>,
    /// Answers that were written.
    answers_by_path: HashMap<String, usize>,
    responders: HashMap<String, Responder>,
}

/// Dropped, it closes its port and every connection.
pub struct Receiver {
    port: u16,
    shared: Arc<Shared>,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Receiver {
    pub fn start() -> Receiver {
        Receiver::start_on(port::free())
    }

    /// For a receiver that comes back at the port of an earlier one, or at a closed one.
    pub fn start_on(port: u16) -> Receiver {
        // An earlier receiver's socket may live on for a moment, in a process that another test is about to execute.
        let listener = wait::until(&format!("port {port} to be free"), || {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        });
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            held_paths: watch::Sender::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || serve(listener, shared, stopped))
        };
        Receiver {
            port,
            shared,
            server: Some((stop, thread)),
        }
    }

    /// A URL where nobody listens.
    pub fn closed_url() -> String {
        format!("http://127.0.0.1:{}/", port::free())
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Answers the path's requests from now on, instead of with 200. The responder gets the request and its
    /// number among all to this path, from 1.
    pub fn respond(
        &self,
        path: &str,
        responder: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static,
    ) {
        let mut state = self.shared.state.lock().unwrap();
        state
            .responders
            .insert(path.to_owned(), Arc::new(responder));
    }

    /// Requests to this path are recorded, but their answers wait for `release`.
    pub fn hold(&self, path: &str) {
        self.shared.held_paths.send_modify(|held| {
            held.insert(path.to_owned(), 0);
        });
    }

    /// Answers the first so many requests of the path, and holds the others.
    pub fn hold_after(&self, path: &str, number: usize) {
        self.shared.held_paths.send_modify(|held| {
            held.insert(path.to_owned(), number);
        });
    }

    pub fn release(&self, path: &str) {
        self.shared.held_paths.send_modify(|held| {
            held.remove(path);
        });
    }

    /// In the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.arrivals().requests()
    }

    /// The requests so far and those to come; they outlive the receiver.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals(Arc::clone(&self.shared))
    }

    pub fn requests_to(&self, path: &str) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| without_query(&request.path) == path);
        requests
    }

    pub fn request_count(&self) -> usize {
        self.shared.state.lock().unwrap().requests.len()
    }

    /// Waits until there are at least `count` requests and returns them all.
    #[track_caller]
    pub fn wait_for_requests(&self, count: usize) -> Vec<Request> {
        wait::until(&format!("{count} requests to arrive"), || {
            match self.request_count() {
                seen if seen >= count => Ok(()),
                seen => Err(seen),
            }
        });
        self.requests()
    }

    #[track_caller]
    pub fn wait_for_requests_to(&self, path: &str, count: usize) -> Vec<Request> {
        wait::until(&format!("{count} requests to {path}"), || {
            let requests = self.requests_to(path);
            match requests.len() {
                seen if seen >= count => Ok(requests),
                seen => Err(seen),
            }
        })
    }

    /// Waits until the answers to all requests to this path have been written.
    #[track_caller]
    pub fn wait_until_answered(&self, path: &str) {
        wait::until(&format!("answers to all requests to {path}"), || {
            let state = self.shared.state.lock().unwrap();
            let count = |counts: &HashMap<String, usize>| counts.get(path).copied().unwrap_or(0);
            match (
                count(&state.answers_by_path),
                count(&state.requests_by_path),
            ) {
                (answers, requests) if answers == requests => Ok(()),
                seen => Err(seen),
            }
        });
    }

    /// Waits until the event has arrived, and returns its first request.
    #[track_caller]
    pub fn wait_for_event(&self, event_id: Uuid) -> Request {
        wait::until(&format!("event {event_id} to arrive"), || {
            let requests = self.requests();
            let seen = requests.len();
            let arrived = requests.into_iter().find(|r| r.event_id() == event_id);
            arrived.ok_or(format!("{seen} other requests"))
        })
    }
}

/// The requests that a receiver records.
pub struct Arrivals(Arc<Shared>);

impl Arrivals {
    /// In the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.0.state.lock().unwrap().requests.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.server.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

fn serve(listener: TcpListener, shared: Arc<Shared>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    // Leaving block_on drops the runtime and with it every connection.
    runtime.expect("a runtime can be built").block_on(async {
        tokio::select! {
            _ = accept(listener, shared) => {}
            _ = stopped => {}
        }
    });
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // The paths of answers that are not written yet.
        let given = Arc::<Mutex<Vec<String>>>::default();
        let stream = {
            let (given, shared) = (given.clone(), shared.clone());
            Answering::new(stream, move || shared.note_answers(&given))
        };
        let shared = shared.clone();
        let service = service_fn(move |request| answer(request, shared.clone(), given.clone()));
        // A request of a client that has left meanwhile was sent all the same.
        let connection = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

async fn answer(
    incoming: hyper::Request<Incoming>,
    shared: Arc<Shared>,
    given: Arc<Mutex<Vec<String>>>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let (arrived, arrived_at) = (Instant::now(), SystemTime::now());
    let (head, body) = incoming.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(Answer::status(400).into_response());
    };
    let path = head.uri.path().to_owned();
    let request = Request {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head.headers,
        body: body.to_bytes(),
        arrived,
        arrived_at,
    };
    let number = shared.record(&path, &request);
    let mut held_paths = shared.held_paths.subscribe();
    let is_answered =
        |held: &HashMap<String, usize>| held.get(&path).is_none_or(|last| number <= *last);
    let _ = held_paths.wait_for(is_answered).await;
    let answer = shared.answer(&path, &request, number);
    given.lock().unwrap().push(path);
    Ok(answer.into_response())
}

impl Shared {
    /// Returns the request's number among all to this path.
    fn record(&self, path: &str, request: &Request) -> usize {
        let mut state = self.state.lock().unwrap();
        state.requests.push(request.clone());
        let number = state.requests_by_path.entry(path.to_owned()).or_default();
        *number += 1;
        *number
    }

    fn note_answers(&self, given: &Mutex<Vec<String>>) {
        for path in given.lock().unwrap().drain(..) {
            *(self.state.lock().unwrap().answers_by_path)
                .entry(path)
                .or_default() += 1;
        }
    }

    fn answer(&self, path: &str, request: &Request, number: usize) -> Answer {
        let responder = self.state.lock().unwrap().responders.get(path).cloned();
        responder.map_or(Answer::status(200), |responder| responder(request, number))
    }
}

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}
