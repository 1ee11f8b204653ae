// Answers questions about requests with the senders' own libraries: a line of JSON in, a line of JSON out.
import { webcrypto } from 'node:crypto';
import { createInterface } from 'node:readline';

globalThis.crypto ??= webcrypto; // Node 18 has it under its module only

await import('@shopify/shopify-api/adapters/node');
const octokit = await import('@octokit/webhooks-methods');
const { shopifyApi } = await import('@shopify/shopify-api');
const { createSHA256HMAC } = await import('@shopify/shopify-api/runtime');

function shop(secret) {
  const settings = { apiKey: 'key', apiSecretKey: secret, scopes: [], hostName: 'hooks.example.com' };
  return shopifyApi({ ...settings, apiVersion: '2025-01', isEmbeddedApp: false, logger: { level: 0 } });
}

const libraries = {
  octokit: {
    sign: ({ secret, body }) => octokit.sign(secret, body),
    judge: ({ secret, body, headers }) => octokit.verify(secret, body, headers['x-hub-signature-256']),
  },
  shopify: {
    sign: ({ secret, body }) => createSHA256HMAC(secret, body),
    judge: async ({ secret, body, headers }) => {
      const rawRequest = { method: 'POST', url: '/in/it', headers };
      return (await shop(secret).webhooks.validate({ rawBody: body, rawRequest, rawResponse: {} })).valid;
    },
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { library, act, ...request } = JSON.parse(line);
  console.log(JSON.stringify(await libraries[library][act](request)));
}
