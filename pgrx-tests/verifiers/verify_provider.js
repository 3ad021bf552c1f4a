// Reads a line of JSON (secret, headers) and a raw body; says what the library of the provider that its argument names thinks
// of them.

const { readFileSync } = require("node:fs");

const input = readFileSync(0);
const end = input.indexOf("\n");
const { secret, headers } = JSON.parse(input.subarray(0, end));
const body = input.subarray(end + 1).toString();

const providers = {
  async github() {
    const { verify } = await import("@octokit/webhooks-methods");
    return verify(secret, body, headers["x-hub-signature-256"]);
  },
  async shopify() {
    require("@shopify/shopify-api/adapters/node");
    const { shopifyApi } = require("@shopify/shopify-api");
    const app = { apiKey: "none", apiVersion: "2026-10", hostName: "localhost", isEmbeddedApp: false, logger: { level: 0 } };
    const rawRequest = { method: "POST", url: "/", headers };
    const shopify = shopifyApi({ ...app, apiSecretKey: secret });
    return (await shopify.webhooks.validate({ rawBody: body, rawRequest, rawResponse: {} })).valid;
  },
  async stripe() {
    const { webhooks } = require("stripe");
    try {
      return Boolean(webhooks.constructEvent(body, headers["stripe-signature"], secret));
    } catch (error) {
      if (error.type !== "StripeSignatureVerificationError") throw error;
      return false;
    }
  },
};

providers[process.argv[1]]().then((accepted) => {
  console.log(accepted ? "accepted" : "refused: no signature of this secret");
});
