/** The texts of the page whose contrast (WCAG 2) is below 4.5, for test_browser.py: [[text, contrast]]. */
() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colors) => {
    context.clearRect(0, 0, 1, 1);
    for (const color of colors) {
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
    }
    return context.getImageData(0, 0, 1, 1).data;
  };
  const luminance = (color) => {
    const [r, g, b] = Array.from(color.slice(0, 3), (each) => (each / 255 <= 0.04045 ? each / 3294.6 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const isSvg = (element) => element instanceof SVGElement;
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = Array.from(element.childNodes).filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data).join("").trim();
    if (!text || /^[·⋯]$/.test(text) || element.closest("title, button:disabled") || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const parents = [];
    for (let each = element; each; each = each.parentElement) parents.unshift(each);
    const box = isSvg(element) && element.parentNode.querySelector("rect");
    const behind = [...parents.filter((each) => !isSvg(each)).map((each) => getComputedStyle(each).backgroundColor), box ? getComputedStyle(box).fill : "transparent"];
    const style = getComputedStyle(element);
    const [front, back] = [luminance(over([...behind, isSvg(element) ? style.fill : style.color])), luminance(over(behind))];
    const opacity = parents.reduce((product, each) => product * getComputedStyle(each).opacity, 1);
    const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (contrast < 4.5 || opacity < 1) found.push([text, contrast, opacity]);
  }
  return found;
}
