/** Where `pleach.js` takes the module from: the file beside it, in a browser; in Node.js give `load` the bytes. The npm package has the module itself here, as text. */
export async function ownModule() {
  const at = new URL("pleach.wasm", import.meta.url);
  const response = await fetch(at);
  if (!response.ok) throw new Error(`${at}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}
