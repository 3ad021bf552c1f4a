// Reads a line of JSON (secret, headers) and a raw body; says what standardwebhooks thinks of them.

const { readFileSync } = require("node:fs");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

const input = readFileSync(0);
const end = input.indexOf("\n");
const request = JSON.parse(input.subarray(0, end));
try {
  new Webhook(request.secret).verify(input.subarray(end + 1), request.headers);
  console.log("accepted");
} catch (error) {
  if (!(error instanceof WebhookVerificationError)) throw error;
  console.log(`refused: ${error.message}`);
}
